"""What comes back from a larger tier: drafts that stand, tokens that are taken, and visits that failed."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

from ..errors import AllroadsError, Internal, OutOfStep
from ..mesh.status import from_wire
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2
from ..policies.policy import Return
from .journeys import Journeys
from .judging import Judge
from .request import Place, Request

_MAX_VAIN_VISITS = 8
"""Visits in a row of which nothing is committed; a policy that asks for more goes round in circles."""


class Visits:
    """Turns a tier's messages into commits and homecomings."""

    def __init__(self, journeys: Journeys, judge: Judge) -> None:
        self._journeys = journeys
        self._judge = judge

    def take(self, tier: int, response: model_pb2.VisitResponse) -> None:
        """Take a message of a tier. What belongs to a request or a visit that is over is left aside."""
        if response.HasField("steps"):
            self._journeys.reports.take_steps(tier, response.steps)
        for failure in response.errors:
            if (request := self._journeys.table.numbered(failure.sequence_id)) is not None:
                self._take_error(request, tier, from_wire(failure.error))
        for number, num_cached in zip(response.admitted_sequence_ids, response.num_cached_tokens, strict=True):
            if (request := self._journeys.table.numbered(number)) is not None:
                self._take_reservation(request, tier, num_cached)
        for number, visit, entry in _entries(response):
            request = self._journeys.table.numbered(number)
            if request is None or request.visited != tier or request.num_visits != visit:
                continue
            if request.place is not Place.AWAY:
                continue
            usage = request.usage
            usage.num_computed_tokens[tier] += entry.num_computed
            usage.num_opinions += entry.num_opinions
            usage.num_agreed_opinions += entry.num_agreed
            self._take_entry(request, entry)

    def _take_reservation(self, request: Request, tier: int, num_cached: int) -> None:
        """The tier has set KV aside."""
        request.usage.num_cached_tokens[tier] = num_cached
        request.reserved.add(tier)
        if request.place is Place.RESERVING and request.visited == tier:
            self._journeys.reserve(request)
            self._judge.settle([request])

    def _take_entry(self, request: Request, entry: "_Entry") -> None:
        """Commit what stands of the drafts and what the tier wrote; go on when its visit is over."""
        tier = request.visited
        if entry.judged != request.is_submitted or entry.num_accepted > request.num_held:
            self._journeys.end(request, Internal(f"tier {tier} gave a judgement that nobody asked for"))
            return
        returned = Return(
            tier,
            entry.token_ids,
            is_over=entry.returned,
            num_drafts=request.num_held if entry.judged else 0,
            num_accepted=entry.num_accepted,
            extra=entry.extra,
        )
        kept = self._journeys.ask_policy(request, lambda: request.policy.receive(request.view, returned))
        if kept is None:
            return
        length = request.length
        is_over = entry.returned or kept < len(entry.token_ids)
        goes_on = self._commit(request, entry, kept)
        if is_over:
            self._journeys.reports.returned(request)
        if not goes_on:
            return
        request.known_lengths[tier] = request.length
        request.num_vain_visits = 0 if request.length > length else request.num_vain_visits + entry.returned
        if request.num_vain_visits > _MAX_VAIN_VISITS:
            failed = f"nothing came of {request.num_vain_visits} visits in a row"
            self._journeys.end(request, Internal(f"policy {request.policy.name} failed: {failed}"))
        elif is_over:
            self._journeys.go(request, entry.next_tier)
            self._judge.settle([request])

    def _commit(self, request: Request, entry: "_Entry", kept: int) -> bool:
        """Make what stands part of the answer. Whether that goes on."""
        if entry.judged and not self._journeys.take_judgement(request, entry.num_accepted):
            return False
        tokens = zip_longest(entry.token_ids[:kept], entry.logprobs[:kept])
        return all(self._journeys.take_back(request, token_id, request.visited, own) for token_id, own in tokens)

    def _take_error(self, request: Request, tier: int, error: AllroadsError) -> None:
        """A tier that lost its place is told everything again; any other error ends the request."""
        # Either way the tier has freed what it held.
        request.known_lengths[tier] = 0
        request.reserved.discard(tier)
        if isinstance(error, OutOfStep) and request.place is Place.AWAY and request.visited == tier:
            self._journeys.hand_off(request, tier, submits=request.is_submitted)
        else:
            self._journeys.end(request, error)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a message tells of one visit."""

    token_ids: list[int]
    logprobs: list[pb.TokenLogprobs]
    """Parallel to `token_ids`, or empty."""
    returned: bool
    judged: bool
    num_accepted: int
    next_tier: int
    extra: tuple[float, ...]
    num_computed: int
    num_opinions: int
    num_agreed: int


def _entries(response: model_pb2.VisitResponse) -> Iterator[tuple[int, int, _Entry]]:
    """A message cut by its parallel arrays: number of the request, of the visit, and what is told of it."""
    token_ids, logprobs, extra = iter(response.token_ids), iter(response.logprobs), iter(response.extra)
    for (
        number,
        visit,
        num_tokens,
        num_logprobs,
        num_extra,
        returned,
        judged,
        num_accepted,
        next_tier,
        num_computed,
        num_opinions,
        num_agreed,
    ) in zip(
        response.sequence_ids,
        response.visit_numbers,
        response.num_tokens,
        response.num_logprobs,
        response.num_extra,
        response.returned,
        response.judged,
        response.num_accepted_drafts,
        response.next_tiers,
        response.num_computed_tokens,
        response.num_opinions,
        response.num_agreed_opinions,
        strict=True,
    ):
        yield (
            number,
            visit,
            _Entry(
                token_ids=list(islice(token_ids, num_tokens)),
                logprobs=list(islice(logprobs, num_logprobs)),
                extra=tuple(islice(extra, num_extra)),
                returned=returned,
                judged=judged,
                num_accepted=num_accepted,
                next_tier=next_tier,
                num_computed=num_computed,
                num_opinions=num_opinions,
                num_agreed=num_agreed,
            ),
        )

"""What comes back from a larger tier: tokens that are taken, and visits that failed."""

from collections.abc import Sequence as SequenceOf
from itertools import islice

from ..errors import AllroadsError, OutOfStep
from ..mesh.status import from_wire
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2
from .journeys import Journeys
from .judging import Judge
from .request import Place, Request

_TIER = 1


class Visits:
    """Turns a tier's messages into commits and homecomings."""

    def __init__(self, journeys: Journeys, judge: Judge) -> None:
        self._journeys = journeys
        self._judge = judge

    def take(self, response: model_pb2.VisitResponse) -> None:
        """Take a message of the tier. What belongs to a request or a visit that is over is left aside."""
        for failure in response.errors:
            if (request := self._journeys.table.numbered(failure.sequence_id)) is not None:
                self._take_error(request, from_wire(failure.error))
        for number, num_cached in zip(response.admitted_sequence_ids, response.num_cached_tokens, strict=True):
            if (request := self._journeys.table.numbered(number)) is not None:
                self._take_reservation(request, num_cached)
        logprobs = iter(response.logprobs)
        begin = 0
        for number, visit, num_tokens, returned, num_computed, num_opinions, num_agreed in zip(
            response.sequence_ids,
            response.visit_numbers,
            response.num_tokens,
            response.returned,
            response.num_computed_tokens,
            response.num_opinions,
            response.num_agreed_opinions,
            strict=True,
        ):
            token_ids = list(response.token_ids[begin : begin + num_tokens])
            begin += num_tokens
            request = self._journeys.table.numbered(number)
            if request is None:
                continue
            wants_logprobs = request.sequence.sampling.num_logprobs is not None
            own = list(islice(logprobs, num_tokens)) if wants_logprobs else [None] * num_tokens
            if request.place is not Place.AWAY or request.num_visits != visit:
                continue
            usage = request.usage
            usage.num_computed_tokens[_TIER] += num_computed
            usage.num_opinions += num_opinions
            usage.num_agreed_opinions += num_agreed
            self._take_tokens(request, token_ids, own, returned=returned)

    def _take_reservation(self, request: Request, num_cached: int) -> None:
        """The tier has set KV aside."""
        request.usage.num_cached_tokens[_TIER] = num_cached
        if request.place is Place.STALLED_ROUTER:
            request.has_started = True
        if request.place is Place.RESERVING:
            self._journeys.start(request)
            self._judge.settle([request])

    def _take_tokens(
        self, request: Request, token_ids: list[int], logprobs: SequenceOf[pb.TokenLogprobs | None], *, returned: bool
    ) -> None:
        """Commit what the tier wrote; bring the request home when its visit is over."""
        kept = self._journeys.ask_policy(request, lambda: request.policy.receive(request.view, token_ids))
        if kept is None:
            return
        for token_id, own in zip(token_ids[:kept], logprobs, strict=False):
            if not self._journeys.take_back(request, token_id, _TIER, own):
                return
        request.tier_length = request.length
        if returned or kept < len(token_ids):
            self._journeys.proceed(request)
            self._judge.settle([request])

    def _take_error(self, request: Request, error: AllroadsError) -> None:
        """A tier that lost its place is told everything again; any other error ends the request."""
        # Either way the tier has freed what it held.
        request.tier_length = 0
        if isinstance(error, OutOfStep) and request.place is Place.AWAY:
            self._journeys.hand_off(request)
        else:
            self._journeys.end(request, error)

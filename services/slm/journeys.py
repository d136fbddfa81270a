"""The moves of a request between tiers: who writes next, hand-off, commit, stall, end.

Each move leaves a request in one of the places of `Place`, and whatever must be told to others in `out`.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from ..engine.engine import Engine
from ..engine.sequence import State
from ..errors import AllroadsError, Internal
from ..mesh.tracing import OFF, Tracer
from ..mesh.wire import common_pb2 as pb
from ..policies.policy import HOME, MAX_DRAFTS, MAX_EXTRA, Verdict, Visit
from .decisions import Decisions
from .outbound import Outbound
from .reports import Reports
from .request import Place, Proposal, Request
from .table import RequestTable
from .tensors_out import TensorsOut
from .traced import attributes_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

RESERVATION = Visit(max_tokens=0)
"""A visit for KV alone."""


class Journeys:
    """Moves requests. Belongs to the decode thread."""

    def __init__(
        self,
        engine: Engine,
        tensors: TensorsOut,
        decisions: Decisions,
        reports: Reports,
        *,
        max_unjudged: int,
        max_ahead: int,
        tracer: Tracer = OFF,
    ) -> None:
        self.engine = engine
        self.reports = reports
        self._decisions = decisions
        self.table = RequestTable()
        self.out = Outbound()
        """What this turn has to say."""
        self.tiers_up: set[int] = set()
        """Larger tiers within reach."""
        self._tensors = tensors
        self._tracer = tracer
        self._max_unjudged = max_unjudged
        self._max_ahead = max_ahead

    def admitted(self, request: Request) -> None:
        """A request has its KV here: reserve it on the larger tiers, too, where its policy may go there."""
        request.usage.num_cached_tokens[HOME] = request.sequence.num_cached
        self.reserve(request)

    def reserve(self, request: Request) -> None:
        """Ask the next larger tier to set KV aside; start when all have that the policy may go to.

        In the order of the tiers, so that no two requests each hold what the other waits for. The prompt is
        computed here meanwhile; nothing is committed before.
        """
        missing = sorted(request.reach - request.reserved - {HOME})
        # One that is for a single larger tier reserves by its first visit.
        if not missing or request.reach == {missing[0]}:
            request.has_started, request.started_ns = True, time.monotonic_ns()
            self.proceed(request)
            return
        request.visited = missing[0]
        if request.visited not in self.tiers_up:
            self.stall(request, Place.STALLED_TIER)
            return
        request.place = Place.RESERVING
        self.out.hand_off(request, RESERVATION)
        self.propose(request)

    def proceed(self, request: Request) -> None:
        """The request is at home: let the policy say who writes next, if it knows already, or the small model go on."""
        request.place = Place.HOME
        if request.policy.scorer is None and not request.is_asked and not request.num_held:
            request.is_asked = True
            tier = self.ask_policy(request, lambda: request.policy.ahead(request.view))
            if request.place is Place.DONE:
                return
            if tier:
                self.go(request, tier)
                return
        if self._is_in_reach(request, HOME):
            self.propose(request)

    def propose(self, request: Request) -> None:
        """Schedule the small model for a request, or not, as its place and its suffix allow."""
        sequence = request.sequence
        if sequence.state is State.NEW:
            return
        runs = request.may_propose and len(request.suffix) <= self._longest_suffix(request)
        if runs and not sequence.num_uncomputed and not request.suffix:
            sequence.rewind()
        if runs and sequence.state is State.PENDING:
            self.engine.resume(sequence)
        elif not runs:
            self._pend(request)

    def obey(self, request: Request, verdict: Verdict) -> None:
        """Do what a policy says of the proposal in question."""
        if verdict.tier and not self._is_in_reach(request, verdict.tier):
            return
        request.turned_down = request.in_question.made if verdict.tier else None
        request.refused_score = request.in_question.score if verdict.tier and not verdict.keeps else None
        if not verdict.keeps:
            request.usage.num_rejected_tokens += 1
            self.reports.rejected()
        if verdict.is_draft:
            request.num_held += verdict.keeps
            if not (verdict.waits and request.num_held < MAX_DRAFTS and self._can_draft(request)):
                self.hand_off(request, verdict.tier, submits=True)
            return
        for _ in range(request.num_held + verdict.keeps):
            if not self.commit(request, HOME):
                return
        self.go(request, verdict.tier)

    def go(self, request: Request, tier: int) -> None:
        """Let a tier write next; at home that is for the policy to say, or the small model's turn."""
        if tier == HOME:
            self.proceed(request)
        elif self._is_in_reach(request, tier):
            self.hand_off(request, tier)

    def hand_off(self, request: Request, tier: int, *, submits: bool = False) -> None:
        """Send a request to a larger tier with the committed tokens which that has not seen, and with its drafts.

        Its suffix stays for the case that the tier's token is the next of it, and grows meanwhile.
        """
        request.visited, request.is_submitted = tier, submits
        if tier not in self.tiers_up:
            self.stall(request, Place.STALLED_TIER)
            return
        request.view.num_drafts = request.num_held if submits else 0
        visit = self.ask_policy(request, lambda: _checked(request.policy.send(request.view, tier)))
        if visit is None:
            return
        self._let_go_above(request, tier)
        request.place = Place.AWAY
        request.runs_ahead = self._max_ahead > 0 and visit.max_tokens == 1 and HOME in request.reach
        if not request.runs_ahead:
            request.drop_suffix(keep=request.num_held if submits else 0)
        request.usage.num_hand_offs += 1
        draft_logits = self._tensors.pack(request) if submits and request.sends_logits else None
        self.out.hand_off(request, visit, draft_logits=draft_logits)
        self.reports.handed_off(request)
        self.propose(request)

    def take_judgement(self, request: Request, num_accepted: int) -> bool:
        """Commit the drafts that stand, and drop what was built on others. Whether the answer goes on."""
        num_drafts = request.num_held
        request.is_submitted = False
        self._tensors.release(request)
        request.usage.num_drafts += num_drafts
        request.usage.num_accepted_drafts += num_accepted
        for _ in range(num_accepted):
            if not self.commit(request, HOME):
                return False
        request.num_held = 0
        if num_accepted < num_drafts:
            request.drop_suffix()
        return True

    def take_back(self, request: Request, token_id: int, tier: int, logprobs: pb.TokenLogprobs | None) -> bool:
        """Commit a token that a larger tier wrote. Whether the answer goes on."""
        is_confirmed = request.confirms(token_id)
        if request.trip is not None and request.trip.is_confirmed is None:
            request.trip.is_confirmed = is_confirmed
        if is_confirmed:
            request.usage.num_confirmed_hand_offs += 1
            request.suffix[0].logprobs = logprobs
        else:
            request.propose(token_id, Proposal(score=request.refused_score, logprobs=logprobs))
        request.refused_score = None
        return self.commit(request, tier)

    def commit(self, request: Request, tier: int) -> bool:
        """Make the first token of the suffix part of the answer. Whether the answer goes on."""
        token_id, proposal = request.next_token, request.suffix[0]
        reason = request.commit(tier)
        self.reports.committed(tier)
        self._decisions.committed(request, token_id, tier)
        self.out.commit(request, token_id, tier, proposal)
        if reason is not None:
            self.end(request, reason=reason)
        return reason is None

    def stall(self, request: Request, place: Place) -> None:
        """Keep a request until its peer is back, or its patience is over."""
        request.drop_suffix()
        self._pend(request)
        request.place = place
        request.stalled_since_s = time.monotonic()

    def end(
        self,
        request: Request,
        error: AllroadsError | None = None,
        reason: pb.FinishReason.ValueType | None = None,
    ) -> None:
        """Free a request on every tier; tell the client how it ended, where it ended by itself."""
        if request.place is Place.DONE:
            return
        request.place = Place.DONE
        request.usage.num_computed_tokens[HOME] = request.sequence.num_positions
        self.engine.close(request.sequence)
        self._tensors.release(request)
        for tier in request.reach:
            self.out.close_visitor(request, tier)
        self.table.remove(request)
        self._decisions.ended(request, reason, failed=error is not None)
        if request.span is not None and request.span.is_recorded:
            code = None if error is None else error.code
            self._tracer.end(request.span, attributes_of(request, request.span, reason, code), fault=code)
        if reason is not None:
            self.out.finish(request, reason)
        elif error is not None:
            self.out.fail(request.stream_id, request.sequence_id, error)

    def ask_policy(self, request: Request, question: Callable[[], T]) -> T | None:
        """A policy's answer; where it raises, the request ends with the reason and the answer is None."""
        try:
            return question()
        except Exception as error:  # a plug-in may raise anything
            logger.exception("policy %s failed", request.policy.name)
            self.end(request, Internal(f"policy {request.policy.name} failed: {error}"))
            return None

    def _let_go_above(self, request: Request, tier: int) -> None:
        """Before a tier must find room for a request anew, having lost it: give up what higher tiers hold of it.

        So that, as at the start, who waits for a tier holds only lower ones.
        """
        if tier not in request.reserved:
            for higher in [held for held in request.reserved if held > tier]:
                self.out.close_visitor(request, higher)
                request.reserved.discard(higher)

    def _is_in_reach(self, request: Request, tier: int) -> bool:
        """Whether the policy may send the request there; else it ends."""
        if tier not in request.reach:
            reach = sorted(request.reach)
            self.end(
                request, Internal(f"policy {request.policy.name} failed: it named tier {tier}, its reach is {reach}")
            )
        return tier in request.reach

    def _can_draft(self, request: Request) -> bool:
        """Whether there is, or may be, a proposal after the drafts that are held."""
        return len(request.suffix) > request.num_held or request.may_propose

    def _longest_suffix(self, request: Request) -> int:
        """With how long a suffix the small model may still propose; -1 for never."""
        if request.place is Place.AWAY:
            return request.num_held + self._max_ahead if request.runs_ahead else -1
        at_home = request.place in (Place.HOME, Place.RESERVING)
        return request.num_held + self._max_unjudged if at_home else -1

    def _pend(self, request: Request) -> None:
        if request.sequence.state is State.RUNNING:
            self.engine.pend(request.sequence)


def _checked(visit: Visit) -> Visit:
    """A visit as a policy may ask for it.

    Raises:
        Internal: it asks for no token, or brings too many extra numbers.
    """
    if visit.max_tokens < 1 or len(visit.extra) > MAX_EXTRA:
        raise Internal(f"send gave {visit.max_tokens} tokens and {len(visit.extra)} extra numbers")
    return visit

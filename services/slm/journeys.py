"""The moves of a request between tiers: who writes next, hand-off, commit, stall, end.

Each move leaves a request in one of the places of `Place`, and whatever must be told to others in `out`.
"""

import logging
import time
from collections.abc import Callable

from ..engine.engine import Engine
from ..engine.sequence import State
from ..errors import AllroadsError, Internal
from ..mesh.wire import common_pb2 as pb
from ..policies.policy import HOME
from .outbound import Outbound
from .request import Place, Proposal, Request
from .table import RequestTable

logger = logging.getLogger(__name__)


class Journeys:
    """Moves requests. Belongs to the decode thread."""

    def __init__(self, engine: Engine, *, max_unjudged: int, max_ahead: int) -> None:
        self.engine = engine
        self.table = RequestTable()
        self.out = Outbound()
        """What this turn has to say."""
        self.tier_is_up = False
        self._max_unjudged = max_unjudged
        self._max_ahead = max_ahead

    def admitted(self, request: Request) -> None:
        """A request has its KV here: reserve it on the larger tier, too, where its policy may go there."""
        request.usage.num_cached_tokens[HOME] = request.sequence.num_cached
        if request.policy.reach == {HOME}:
            self.start(request)
        else:
            self.reserve(request)

    def reserve(self, request: Request) -> None:
        """Ask the larger tier to set KV aside. The prompt is computed here meanwhile; nothing is committed before."""
        if not self.tier_is_up:
            self.stall(request, Place.STALLED_TIER)
            return
        request.place = Place.RESERVING
        self.out.hand_off(request, 0)
        self.propose(request)

    def start(self, request: Request) -> None:
        """Everything that a request may need is reserved."""
        request.has_started = True
        self.proceed(request)

    def proceed(self, request: Request) -> None:
        """The request is at home: let the policy say who writes next, if it knows already, or the small model go on."""
        request.place = Place.HOME
        if request.policy.scorer is None and not request.is_asked:
            request.is_asked = True
            tier = self.ask_policy(request, lambda: request.policy.ahead(request.view))
            if request.place is Place.DONE:
                return
            if tier:
                self.hand_off(request)
                return
        self.propose(request)

    def propose(self, request: Request) -> None:
        """Schedule the small model for a request, or not, as its place and its suffix allow."""
        sequence = request.sequence
        runs = request.may_propose and len(request.suffix) <= self._longest_suffix(request)
        if runs and not sequence.num_uncomputed and not request.suffix:
            sequence.rewind()
        if runs and sequence.state is State.PENDING:
            self.engine.resume(sequence)
        elif not runs:
            self._pend(request)

    def hand_off(self, request: Request) -> None:
        """Send a request to the larger tier with the committed tokens which that has not seen.

        Its suffix stays for the case that the tier's token is the first of it, and grows meanwhile.
        """
        if not self.tier_is_up:
            self.stall(request, Place.STALLED_TIER)
            return
        limit = self.ask_policy(request, lambda: request.policy.send(request.view))
        if limit is None:
            return
        limit = max(1, min(limit, request.view.num_left))
        request.place = Place.AWAY
        request.runs_ahead = self._max_ahead > 0 and limit == 1 and HOME in request.policy.reach
        if not request.runs_ahead:
            request.drop_suffix()
        request.usage.num_hand_offs += 1
        self.out.hand_off(request, limit)
        self.propose(request)

    def take_back(self, request: Request, token_id: int, tier: int, logprobs: pb.TokenLogprobs | None) -> bool:
        """Commit a token that a larger tier wrote. Whether the answer goes on."""
        if request.confirms(token_id):
            request.usage.num_confirmed_hand_offs += 1
            request.suffix[0].logprobs = logprobs
        else:
            request.propose(token_id, Proposal(logprobs=logprobs))
        return self.commit(request, tier)

    def commit(self, request: Request, tier: int) -> bool:
        """Make the first token of the suffix part of the answer. Whether the answer goes on."""
        token_id, logprobs = request.next_token, request.suffix[0].logprobs
        reason = request.commit(tier)
        self.out.commit(request, token_id, tier, logprobs)
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
        if request.tier_length:
            self.out.close_visitor(request)
        self.table.remove(request)
        if reason is not None:
            self.out.finish(request, reason)
        elif error is not None:
            self.out.fail(request.stream_id, request.sequence_id, error)

    def ask_policy(self, request: Request, question: Callable[[], int | None]) -> int | None:
        """A policy's answer; where it raises, the request ends with the reason and the answer is None."""
        try:
            return question()
        except Exception as error:  # a plug-in may raise anything
            logger.exception("policy %s failed", request.policy.name)
            self.end(request, Internal(f"policy {request.policy.name} failed: {error}"))
            return None

    def _longest_suffix(self, request: Request) -> int:
        """With how long a suffix the small model may still propose; -1 for never."""
        if request.place is Place.AWAY:
            return self._max_ahead if request.runs_ahead else -1
        return self._max_unjudged if request.place in (Place.HOME, Place.RESERVING) else -1

    def _pend(self, request: Request) -> None:
        if request.sequence.state is State.RUNNING:
            self.engine.pend(request.sequence)

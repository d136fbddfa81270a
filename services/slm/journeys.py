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
from .request import Place, Request
from .table import RequestTable

logger = logging.getLogger(__name__)


class Journeys:
    """Moves requests. Belongs to the decode thread."""

    def __init__(self, engine: Engine, *, max_unjudged: int) -> None:
        self.engine = engine
        self.table = RequestTable()
        self.out = Outbound()
        """What this turn has to say."""
        self.tier_is_up = False
        self._max_unjudged = max_unjudged

    def proceed(self, request: Request) -> None:
        """Everything is committed: let the policy say who writes next, or the small model propose."""
        request.place = Place.HOME
        if request.policy.scorer is None:
            tier = self.ask_policy(request, lambda: request.policy.ahead(request.view))
            if request.place is Place.DONE:
                return
            if tier:
                self.hand_off(request)
                return
        self.propose(request)

    def propose(self, request: Request) -> None:
        """Schedule the small model for a request, or not, as its suffix allows."""
        sequence = request.sequence
        runs = request.may_propose and request.num_unjudged <= self._max_unjudged
        if not sequence.num_uncomputed and not request.num_unjudged:
            sequence.rewind()
        if runs and sequence.state is State.PENDING:
            self.engine.resume(sequence)
        elif not runs:
            self._pend(request)

    def hand_off(self, request: Request) -> None:
        """Send a request, whose suffix is empty, to the larger tier with the tokens which that has not seen."""
        self._pend(request)
        if not self.tier_is_up:
            self.stall(request, Place.STALLED_TIER)
            return
        limit = self.ask_policy(request, lambda: request.policy.send(request.view))
        if limit is not None:
            request.place = Place.AWAY
            self.out.hand_off(request, max(1, min(limit, request.view.num_left)))

    def commit(self, request: Request, token_id: int, tier: int) -> bool:
        """Make the first token of the suffix part of the answer. Whether the answer goes on."""
        reason = request.commit(token_id, tier)
        self.out.commit(request, token_id, tier)
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

    def _pend(self, request: Request) -> None:
        if request.sequence.state is State.RUNNING:
            self.engine.pend(request.sequence)

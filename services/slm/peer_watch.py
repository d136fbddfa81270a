"""Peers that come and go: who stalls, who goes on, and when patience ends."""

import logging
import time
from collections.abc import Mapping

from ..config import HomeSettings
from ..engine.sequence import State
from ..errors import AllroadsError, Unavailable
from ..policies.policy import HOME
from ..policies.registry import PolicyRegistry
from .journeys import Journeys
from .judging import Judge
from .request import Place, Request
from .scoring import ScoreBook

logger = logging.getLogger(__name__)


class PeerWatch:
    """Stalls requests whose peer is gone, and starts them again from their tokens when it is back."""

    def __init__(
        self,
        journeys: Journeys,
        judge: Judge,
        book: ScoreBook,
        policies: PolicyRegistry,
        settings: HomeSettings,
        *,
        num_tiers: int,
    ) -> None:
        self._journeys = journeys
        self._judge = judge
        self._book = book
        self._policies = policies
        self._settings = settings
        self._num_larger = num_tiers - 1

    def router_up(self, num_top_logits: Mapping[str, int]) -> None:
        """Go on with requests that wait for verdicts: their last proposal is made again."""
        self._book.router_up(num_top_logits)
        self._judge.router_is_up = True
        for request in self._journeys.table.at(Place.STALLED_ROUTER):
            if request.has_started:
                request.place = Place.HOME
                self._journeys.propose(request)
            else:
                self._journeys.reserve(request)

    def router_down(self, error: AllroadsError) -> None:
        """Stall requests whose proposals nobody will judge."""
        logger.warning("router lost: %s", error.message)
        self._judge.router_is_up = False
        self._book.router_down()
        for request in self._journeys.table.all():
            if request.policy.scorer is not None and request.suffix:
                self._judge.without_router(request)

    def tier_up(self, tier: int) -> None:
        """Send requests that wait for a tier there again, with all their tokens. Drafts are made again first."""
        self._journeys.tiers_up.add(tier)
        for request in self._journeys.table.at(Place.STALLED_TIER):
            if request.visited != tier:
                continue
            if not request.has_started:
                self._journeys.reserve(request)
            elif request.is_submitted:
                self._journeys.proceed(request)
            else:
                self._journeys.hand_off(request, tier)

    def tier_down(self, tier: int, error: AllroadsError) -> None:
        """Stall requests that are at a tier; what it knew of the others is lost, too."""
        logger.warning("tier %d lost: %s", tier, error.message)
        self._journeys.tiers_up.discard(tier)
        table = self._journeys.table
        for request in table.all():
            request.known_lengths[tier] = 0
            request.reserved.discard(tier)
        for request in [*table.at(Place.AWAY), *table.at(Place.RESERVING)]:
            if request.visited == tier:
                self._journeys.stall(request, Place.STALLED_TIER)

    def expire(self) -> None:
        """Past its patience a stalled request fails, or goes on with the small model alone, as configured."""
        if self._judge.router_is_up and len(self._journeys.tiers_up) == self._num_larger:
            return
        before = time.monotonic() - self._settings.peer_timeout_s
        table = self._journeys.table
        for request in [*table.at(Place.STALLED_ROUTER), *table.at(Place.STALLED_TIER)]:
            if request.stalled_since_s <= before:
                self._give_up(request)

    def _give_up(self, request: Request) -> None:
        peer = "the router" if request.place is Place.STALLED_ROUTER else "a larger model"
        if self._settings.on_peer_loss == "fail":
            self._journeys.end(request, Unavailable(f"{peer} is out of reach"))
            return
        logger.warning("a request goes on with the small model alone: %s is out of reach", peer)
        request.usage.degraded = True
        request.policy = self._policies.get("slm")
        request.acts, request.decision = True, None
        for tier in request.reach:
            self._journeys.out.close_visitor(request, tier)
        request.reach = frozenset({HOME})
        request.has_started = True
        if request.sequence.state is not State.NEW:
            self._journeys.proceed(request)
            return
        request.place = Place.QUEUED
        try:
            self._journeys.engine.open(request.sequence)
        except AllroadsError as error:
            self._journeys.end(request, error)

"""What moves in an event simulation: requests, the tiers that serve them, and how long stays are."""

from bisect import bisect_right
from itertools import accumulate
from math import nan
from random import Random

from .phases import Phases
from .setting import Tier


class Lengths:
    """Draws lengths of stays."""

    def __init__(self, phases: Phases, random: Random) -> None:
        """Of stays like `phases`, by such chance."""
        self._start = list(accumulate(phases.start))
        self._moves = [list(accumulate(row)) for row in phases.moves]
        self._random = random.random

    def draw(self) -> int:
        """Steps of the next stay."""
        num, ended = 1, len(self._moves)
        phase = min(bisect_right(self._start, self._random()), ended - 1)
        while (phase := bisect_right(self._moves[phase], self._random())) < ended:
            num += 1
        return num


class Request:
    """One of the requests that go round."""

    __slots__ = ("ahead", "arrived", "at_home", "last_token", "left", "stay", "visit_began", "visit_left")

    def __init__(self) -> None:
        """Before its first stay."""
        self.at_home = False
        self.stay = 0
        """Number of the stay: a row that was launched for an earlier one is waste."""
        self.left = 0
        """Steps until the stay ends; below 1 where the home went on beyond that."""
        self.ahead = 0
        """Of the stay's steps, those made while the request is away; beyond all limits while it makes a pause."""
        self.visit_left = 0
        """Steps until the visit ends."""
        self.visit_began = False
        self.arrived = nan
        self.last_token = nan


class Server:
    """A tier at work."""

    def __init__(self, tier: Tier, index: int, num_requests: int, random: Random) -> None:
        """Idle; `index` is 0 for the home."""
        self.index = index
        self.lengths = Lengths(tier.stay, random)
        self.alone: list[float] = tier.alone.table(num_requests).tolist()
        self.co_running: list[float] = tier.co_running.table(num_requests).tolist()
        self.waiting: list[Request] = []
        """In the order of their arrival."""
        self.flush_at = nan
        """Time for which it was asked to look whether the oldest has waited enough."""
        self.rows: list[tuple[Request, int]] = []
        """Of the step that runs, each with the stay that it is for; empty when idle."""
        self.began = 0.0
        """When the step did."""
        self.left = 1.0
        """Of the step, by work, at `since`."""
        self.since = 0.0
        self.duration = nan
        """Of a whole step at the present pace."""
        self.timer: object | None = None
        """Event at which the step ends, at the present pace."""

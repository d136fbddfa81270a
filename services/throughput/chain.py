"""What a setting gives in the long run: the chain of a pair, for any number of requests and of larger tiers.

Three reductions lead there, each usual for networks of queues:

- *Delays.* Requests on the way between tiers, or at the beginning of an answer, are in nobody's batch: by Little's law,
  visits per second times the delay that goes with each.
- *Several larger tiers.* Each makes a pair with the home; a stay at home goes on after a visit elsewhere. All pairs
  have the same home, so the requests divide as each pair divides its own: a fixed point.
- *Many requests.* The chain counts in a limited number of equal portions, of several requests or of a part of one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from .pair import Pair, State, solve_pair
from .phases import Phases
from .setting import Floats, Ints, Prediction, Setting

FINE_CELLS, COARSE_CELLS = 64, 32
"""Portions at most: for figures, and to compare thresholds."""
_FINE, _COARSE = 2e-4, 2e-3
"""Part of the throughput by which a solution may still change in a round."""
_SAME = 3.0
"""Times as much, the requests of a pair may change between rounds of the fixed point."""
_MAX_ROUNDS = 12
_FEW = 8
"""Below so many requests, one more or less is no matter of portions."""


def predict(setting: Setting, num_requests: int, thresholds: Sequence[int]) -> Prediction:
    """What so many requests get with a launch threshold for each larger tier.

    Raises:
        ValueError: no request, a threshold below 1 or too few of them, or thresholds of several tiers with which all
            requests could wait for each other.
    """
    (prediction,) = Chain(setting, num_requests).predict([thresholds])
    return prediction


@dataclass(frozen=True)
class _Share:
    """What a larger tier has of the requests that go round: arrays [cases]."""

    visits_per_s: Floats
    at_tier: Floats
    """Mean number of requests there."""
    at_home: Floats
    """Mean number of requests of this pair that are not."""
    batch: Floats
    wait_s: Floats
    home_busy: Floats
    busy: Floats
    again: Floats


class Chain:
    """The chain of a setting and a number of requests. A prediction begins where one nearby ended."""

    def __init__(
        self, setting: Setting, num_requests: int, *, is_coarse: bool = False, near: "Chain | None" = None
    ) -> None:
        """`near`: of a setting nearby, for the same number of requests."""
        if num_requests < 1:
            raise ValueError(f"at least one request is needed, not {num_requests}")
        self._setting, self._num = setting, num_requests
        self._max_cells, self._tolerance = (COARSE_CELLS, _COARSE) if is_coarse else (FINE_CELLS, _FINE)
        self._request_s = setting.request_s * setting.tokens_per_cycle / setting.tokens_per_request
        # At the end of an answer nothing that was made ahead can stay.
        self._confirmed = setting.confirmed * (1.0 - min(setting.tokens_per_cycle / setting.tokens_per_request, 1.0))
        self._tiers = [number for number, share in enumerate(setting.shares) if share > 0.0]
        self._stays = {number: _stay_until(setting.home.stay, setting.shares[number]) for number in self._tiers}
        self._is_direct = len(self._tiers) == 1 and not (self._request_s or setting.hand_off_s)
        """Whether there is nothing to be found as a fixed point."""
        self._sizes: dict[int, float] = (
            dict.fromkeys(self._tiers, float(num_requests)) if near is None else dict(near._sizes)
        )
        """Requests of each pair, of late."""
        self._states: dict[tuple[int, int], dict[int, State]] = {} if near is None else near._states
        """Solutions by tier, number of cells, and threshold in cells."""

    def predict(self, thresholds: Sequence[Sequence[int]]) -> list[Prediction]:
        """See `predict`; of several combinations of thresholds at once, which costs little more than of one."""
        for case in thresholds:
            self._check(case)
        cases = np.array(thresholds, dtype=np.int64).reshape(len(thresholds), -1)
        sizes = {number: np.full(len(cases), self._sizes[number]) for number in self._tiers}
        busy = {number: np.zeros(len(cases)) for number in self._tiers}
        for _ in range(_MAX_ROUNDS):
            shares = {number: self._solve(number, cases[:, number], sizes[number], busy) for number in self._tiers}
            away = np.sum([(s.at_tier + self._in_transit(s)) / s.at_home for s in shares.values()], axis=0)
            at_home = self._num / (1.0 + away)
            visits_per_s = np.sum([s.visits_per_s / s.at_home * at_home for s in shares.values()], axis=0)
            change = 0.0
            for number, share in shares.items():
                size = at_home * (1.0 + share.at_tier / share.at_home)
                change = max(change, float(np.abs(size / sizes[number] - 1.0).max()))
                # Half of the way, since tiers compete for requests.
                sizes[number] = np.clip(np.sqrt(size * sizes[number]), 1e-3, self._num)
                busy[number] = share.busy
            if self._is_direct or change <= _SAME * self._tolerance:
                break
        self._sizes = {number: float(np.median(of_tier)) for number, of_tier in sizes.items()}
        return [self._prediction(case, cases[case], shares, visits_per_s) for case in range(len(cases))]

    def _check(self, thresholds: Sequence[int]) -> None:
        if len(thresholds) != len(self._setting.larger) or min(thresholds) < 1:
            raise ValueError(f"{len(self._setting.larger)} thresholds from 1 on are needed, not {list(thresholds)}")
        if not are_possible(thresholds, self._num):
            raise ValueError(
                f"with thresholds {list(thresholds)} all {self._num} requests could wait for each other: the sum of "
                "B - 1 must be less than their number"
            )

    def _in_transit(self, share: _Share) -> Floats:
        """Requests of a pair that are on their way. Those that are handed off again at once, the pair has itself."""
        return share.visits_per_s * (self._request_s + self._setting.hand_off_s * (1.0 - share.again))

    def _prediction(self, case: int, thresholds: Ints, shares: dict[int, _Share], visits_per_s: Floats) -> Prediction:
        def each(name: str) -> tuple[float, ...]:
            values = {number: float(getattr(share, name)[case]) for number, share in shares.items()}
            return tuple(values.get(number, 0.0) for number in range(len(thresholds)))

        return Prediction(
            num_requests=self._num,
            thresholds=tuple(thresholds.tolist()),
            tokens_per_s=float(visits_per_s[case]) * self._setting.tokens_per_cycle,
            batches=each("batch"),
            waits_s=each("wait_s"),
            busy=(max(each("home_busy")), *each("busy")),
        )

    def _solve(self, number: int, thresholds: Ints, sizes: Floats, busy: dict[int, Floats]) -> _Share:
        """The pair of a larger tier, with so many requests, beside other tiers that are so busy."""
        middle = float(np.median(sizes))
        if middle < _FEW and middle != floor(middle):
            # A part of a request is there for a part of the time.
            low = floor(middle)
            above = self._solve_cells(number, thresholds, np.full(len(sizes), low + 1.0), busy)
            below = self._solve_cells(number, thresholds, np.full(len(sizes), float(low)), busy) if low else None
            return _blended(below, above, sizes - low)
        return self._solve_cells(number, thresholds, sizes, busy)

    def _solve_cells(self, number: int, thresholds: Ints, sizes: Floats, busy: dict[int, Floats]) -> _Share:
        cells = max(1, min(self._max_cells, round(float(np.median(sizes)))))
        portions = sizes / cells
        in_cells = np.rint(np.minimum(thresholds, sizes) / portions).astype(np.int64).clip(1, cells)
        known = self._states.setdefault((number, cells), {})
        start = [known[_nearest(value, known)] for value in in_cells.tolist()] if known else None
        cycle = solve_pair(self._pair(number, portions, cells, busy), in_cells, start, tolerance=self._tolerance)
        known.update(zip(in_cells.tolist(), cycle.states, strict=True))
        at_tier = np.minimum(cycle.at_large * portions, sizes * (1.0 - 1e-9))
        return _Share(
            visits_per_s=cycle.visits_per_s * portions,
            at_tier=at_tier,
            at_home=sizes - at_tier,
            batch=np.maximum(cycle.batch * portions, 1.0),
            wait_s=cycle.wait_s,
            home_busy=cycle.home_busy,
            busy=cycle.large_busy,
            again=cycle.again,
        )

    def _pair(self, number: int, portions: Floats, cells: int, busy: dict[int, Floats]) -> Pair:
        home, tier = self._setting.home, self._setting.larger[number]
        rows = np.maximum(np.arange(cells + 1) * portions[:, None], 1.0)
        most = ceil(float(rows.max()))
        curves = (home.alone, home.co_running, tier.alone, tier.co_running)
        alone, beside, large, large_beside = (np.interp(rows, np.arange(most + 1), c.table(most)) for c in curves)
        idle = [1.0 - part for other, part in busy.items() if other != number]
        mixed = (1.0 - np.prod([np.ones(len(portions)), *idle], axis=0))[:, None]
        return Pair(
            # Paces add up, where others are at work for a part of the time.
            home_alone=1.0 / ((1.0 - mixed) / alone + mixed / beside),
            home_beside=beside,
            large_alone=1.0 / ((1.0 - mixed) / large + mixed / large_beside),
            large_beside=large_beside,
            portions=portions,
            stay=self._stays[number],
            visit_ends=1.0 / tier.stay.mean,
            max_ahead=self._setting.max_ahead,
            confirmed=self._confirmed,
            hand_off_s=self._setting.hand_off_s,
        )


def _blended(below: _Share | None, above: _Share, part: Floats) -> _Share:
    """Between two numbers of requests, of which the lower one may be none: then waits and batches are the other's."""
    values = {name: getattr(above, name) for name in above.__dataclass_fields__}
    for name, high in values.items():
        if below is not None:
            values[name] = (1.0 - part) * getattr(below, name) + part * high
        elif name in {"visits_per_s", "at_tier", "at_home", "home_busy", "busy"}:
            values[name] = part * high
    return _Share(**values)


def _nearest(value: int, known: Iterable[int]) -> int:
    return min(known, key=lambda other: abs(other - value))


def are_possible(thresholds: Sequence[int], num_requests: int) -> bool:
    """Whether some tier always has enough to launch. One alone has, since its threshold is lowered to what can come."""
    return len(thresholds) == 1 or sum(value - 1 for value in thresholds) < num_requests


def _stay_until(stay: Phases, share: float) -> Phases:
    """Steps at home until a hand-off to one of several tiers, which a share of all hand-offs go to."""
    if share >= 1.0 - 1e-9:
        return stay
    again = np.outer(stay.ends * (1.0 - share), stay.start_row)
    return Phases(stay.start, tuple(map(tuple, (stay.matrix + again).tolist())))

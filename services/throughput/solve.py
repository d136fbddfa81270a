"""Which launch thresholds give most, and how many requests may run at once for a promise.

The throughput may have two peaks over a threshold: one where batches follow each other, and one where most of the home
comes along. So the whole range is looked at, in growing steps and coarsely, which costs little, since all are solved
side by side; then what lies around the best. Where something was solved before for as many requests, only what lies
around that, unless it leads to the edge.
"""

from collections import OrderedDict
from collections.abc import Sequence

from .chain import Chain, are_possible
from .setting import Prediction, Setting

_MAX_REMEMBERED = 64
_MAX_PASSES = 3
"""Over several tiers, each of whose thresholds depends on the others."""
_WORTH = 2e-3
"""What a larger threshold must give more; less is noise, and costs latency."""
_MOST_TRIED = 14
_REACH = 2
"""Values on each side of the best that are looked at again."""


class Solver:
    """Finds thresholds, and remembers for each number of requests where they were. Not for several threads."""

    def __init__(self) -> None:
        self._solved: OrderedDict[tuple[int, int], tuple[Chain, Prediction]] = OrderedDict()
        """By the number of larger tiers and of requests."""

    def best(self, setting: Setting, num_requests: int) -> Prediction:
        """The thresholds with the highest throughput, and what they give. Smaller ones where it makes no difference.

        Raises:
            ValueError: there is no request.
        """
        key = (len(setting.larger), num_requests)
        near, known = self._solved.get(key, (None, None))
        chain = Chain(setting, num_requests, is_coarse=True, near=near)
        best = None if known is None else self._around(chain, known)
        if best is None:
            best = self._anywhere(chain, len(setting.larger), num_requests)
        self._solved[key] = chain, best
        self._solved.move_to_end(key)
        if len(self._solved) > _MAX_REMEMBERED:
            self._solved.popitem(last=False)
        return best

    def _around(self, chain: Chain, known: Prediction) -> Prediction | None:
        """The best near what was the best before; None where it lies at the edge of that."""
        num_requests, best = known.num_requests, known
        for tier in range(len(known.thresholds)):
            values = _near(known.thresholds[tier], num_requests)
            best = _best_of(chain, [_with(best.thresholds, tier, value) for value in values], num_requests)
            if (
                len(values) > 1
                and best.thresholds[tier] in (values[0], values[-1])
                and 1 < best.thresholds[tier] < num_requests
            ):
                return None
        return best

    def _anywhere(self, chain: Chain, num_tiers: int, num_requests: int) -> Prediction:
        (best,) = chain.predict([(1,) * num_tiers])
        for _ in range(_MAX_PASSES if num_tiers > 1 else 1):
            before = best.thresholds
            for tier in range(num_tiers):
                cases = [_with(best.thresholds, tier, value) for value in _spread(num_requests)]
                best = _best_of(chain, cases, num_requests)
                cases = [_with(best.thresholds, tier, value) for value in _between(best.thresholds[tier], num_requests)]
                best = _best_of(chain, cases, num_requests)
            if best.thresholds == before:
                break
        return best


def capacity(setting: Setting, *, min_tokens_per_s: float, max_requests: int, solver: Solver | None = None) -> int:
    """The largest number of requests, `max_requests` at most, of which each gets so many tokens per second.

    At the thresholds that are best for that number. 0 where not even one does.

    Raises:
        ValueError: the promise is not positive, or there is no request.
    """
    if not min_tokens_per_s > 0.0 or max_requests < 1:
        raise ValueError(f"min_tokens_per_s must be positive and max_requests at least 1, not {max_requests}")
    solver = solver or Solver()

    def keeps(num_requests: int) -> bool:
        return solver.best(setting, num_requests).tokens_per_s_each >= min_tokens_per_s

    low, high = 0, 1
    while keeps(high):
        if high == max_requests:
            return high
        low, high = high, min(2 * high, max_requests)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _best_of(chain: Chain, cases: Sequence[tuple[int, ...]], num_requests: int) -> Prediction:
    """The best of these combinations, of those that are equally good the one with the lowest thresholds."""
    possible = [case for case in dict.fromkeys(cases) if are_possible(case, num_requests)]
    predictions = sorted(chain.predict(possible), key=lambda one: one.thresholds)
    most = max(one.tokens_per_s for one in predictions)
    return next(one for one in predictions if one.tokens_per_s >= most * (1.0 - _WORTH))


def _with(thresholds: tuple[int, ...], tier: int, value: int) -> tuple[int, ...]:
    return (*thresholds[:tier], value, *thresholds[tier + 1 :])


def _spread(num_requests: int) -> list[int]:
    """Values from 1 to the number of requests: all, or in even ratios."""
    if num_requests <= _MOST_TRIED:
        return list(range(1, num_requests + 1))
    ratio = num_requests ** (1.0 / (_MOST_TRIED - 1))
    return sorted({round(ratio**power) for power in range(_MOST_TRIED)})


def _between(value: int, num_requests: int) -> list[int]:
    """Values around one of `_spread`, up to its neighbours there."""
    spread = _spread(num_requests)
    place = spread.index(value) if value in spread else 0
    low, high = spread[max(place - 1, 0)], spread[min(place + 1, len(spread) - 1)]
    stride = max(1, (high - low) // 6)
    return sorted({value, *range(low, high + 1, stride)})


def _near(value: int, num_requests: int) -> list[int]:
    """A few values around one."""
    stride = max(1, value // 8)
    values = {value + step * stride for step in range(-_REACH, _REACH + 1)}
    return sorted(other for other in {*values, 1} if 1 <= other <= num_requests)

"""Where along a policy's parameter to measure next: where accuracy and the large model's share jump most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .mesh_client import ServedPolicy

_PREFERRED = ("threshold", "share", "alpha")
_SMALL_GAP = 0.02
_FAR = 4.0


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """What a value of the parameter comes to."""

    value: float
    share: float
    """Of tokens that the small model does not write."""
    accuracy: float

    def gap(self, other: "Point") -> float:
        """How far apart two are. Small shares are where policies differ, so that the root counts."""
        return abs(self.accuracy - other.accuracy) + abs(math.sqrt(self.share) - math.sqrt(other.share))


def swept_parameter(policy: ServedPolicy) -> str | None:
    """The parameter that trades quality for cost; None where a policy has none that can be varied evenly."""
    for name in (*_PREFERRED, *policy.parameters):
        parameter = policy.parameters.get(name)
        if parameter is None or parameter.is_whole or parameter.minimum is None or parameter.maximum is None:
            continue
        # One for each tier has no single default, and neither has one that must be named.
        if parameter.default is not None or name in _PREFERRED:
            return name
    return None


def next_value(known: Sequence[Point]) -> float | None:
    """A value between the two neighbours that are furthest apart; None where all are close.

    Useful thresholds may lie close to 0, so that steps are by ratio where neighbours are far apart.
    """
    pairs = pairwise(sorted(known))
    for low, high in sorted(pairs, key=lambda pair: pair[0].gap(pair[1]), reverse=True):
        if low.gap(high) < _SMALL_GAP:
            break
        value = float(f"{_between(low.value, high.value):.4g}")
        if low.value < value < high.value:
            return value
    return None


def _between(low: float, high: float) -> float:
    if low == 0:
        return high / _FAR
    if low > 0 and high / low > _FAR:
        return math.sqrt(low * high)
    return (low + high) / 2

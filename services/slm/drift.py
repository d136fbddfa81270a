"""Whether scores and shares are still what they were when the threshold was set.

A threshold is good for the scores that it was set on. Recent scores are counted in bins that held equal parts at
calibration; the population stability index tells how far they have parted: below 0.1 they have not, over 0.25 they
have.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

_MEMORY = 20_000
"""Decisions after which one counts for 1/e."""
_LEAST = 500
"""Below so many decisions nothing is said of drift."""
_PRIOR = 0.5
"""Added to each bin's count, so that an empty one is not infinitely far from what it was."""


class Recent:
    """Counts that fade, by bin. Adding is cheap: what is new weighs more, in place of what is old less."""

    def __init__(self, num_bins: int) -> None:
        self._counts = [0.0] * num_bins
        self._weight = 1.0

    def add(self, index: int) -> None:
        """Count once more."""
        self._counts[index] += self._weight
        self._weight *= 1 + 1 / _MEMORY
        if self._weight > 1e12:
            self._counts = [count / self._weight for count in self._counts]
            self._weight = 1.0

    @property
    def counts(self) -> list[float]:
        """As many of late in each bin, weighted by age."""
        return [count / self._weight for count in self._counts]


class DriftWatch:
    """Recent scores against those at calibration. Belongs to the decode thread."""

    def __init__(self, quantiles: Sequence[float]) -> None:
        """`quantiles`: of the scores then, at even steps, ascending; empty where nobody knows.

        Equal ones, where many scores are the same, are one edge between wider bins.
        """
        steps = len(quantiles) + 1
        below = {edge: (steps - 1 - place) / steps for place, edge in enumerate(reversed(quantiles))}
        self._edges = sorted(below)
        cumulative = [0.0, *(below[edge] for edge in self._edges), 1.0]
        self._expected = [after - before for before, after in pairwise(cumulative)]
        self._recent = Recent(len(self._expected))

    def add(self, score: float) -> None:
        """A score came; NaN is none."""
        if self._edges and not math.isnan(score):
            self._recent.add(bisect_right(self._edges, score))

    @property
    def index(self) -> float | None:
        """Population stability index; None while too little is known."""
        counts = self._recent.counts
        total = sum(counts)
        if not self._edges or total < _LEAST:
            return None
        parts = [(count + _PRIOR) / (total + _PRIOR * len(counts)) for count in counts]
        pairs = zip(parts, self._expected, strict=True)
        return sum((part - expected) * math.log(part / expected) for part, expected in pairs)

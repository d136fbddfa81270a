"""Intervals for what was measured on a sample of problems.

Proportions of problems have Wilson's interval. Means and ratios have the percentile bootstrap (B. Efron, "Bootstrap
methods: another look at the jackknife", Ann. Statist. 7, 1979): problems are drawn anew with replacement, so tokens
of one answer stay together, and two arms are compared on the same problems.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..gateway.wilson import wilson_interval

Floats = npt.NDArray[np.float64]

NUM_RESAMPLES = 2000
_LEVEL = 0.95
_TAILS = (50 * (1 - _LEVEL), 50 * (1 + _LEVEL))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def proportion(num_hits: int, num_trials: int) -> Estimate:
    """A share of independent trials; 0, from 0 to 1, where there are none."""
    return Estimate(num_hits / num_trials if num_trials else 0.0, *wilson_interval(num_hits, num_trials))


class Resamples:
    """The same draws of problems for every figure, so that figures can be compared."""

    def __init__(self, num_problems: int, seed: int, num_resamples: int = NUM_RESAMPLES) -> None:
        self.num_problems = num_problems
        generator = np.random.default_rng(seed)
        share = np.full(num_problems, 1 / num_problems)
        self.weights: Floats = generator.multinomial(num_problems, share, num_resamples).astype(np.float64)
        """[resamples, problems]: how often each problem was drawn."""

    def mean(self, values: Sequence[float]) -> Estimate:
        """Of one value a problem."""
        return self.ratio(values, [1.0] * self.num_problems)

    def ratio(self, above: Sequence[float], below: Sequence[float]) -> Estimate:
        """Sum over sum, of one value each a problem; 0 where the lower sum is."""
        numerator, denominator = np.asarray(above, np.float64), np.asarray(below, np.float64)
        total = float(denominator.sum())
        value = float(numerator.sum()) / total if total else 0.0
        return self.interval(value, _divided(self.weights @ numerator, self.weights @ denominator))

    def interval(self, value: float, resampled: Floats) -> Estimate:
        """The estimate of a figure that was reckoned anew from every draw."""
        finite = resampled[np.isfinite(resampled)]
        if not len(finite):
            return Estimate(value, value, value)
        low, high = (float(bound) for bound in np.percentile(finite, _TAILS))
        return Estimate(value, min(low, value), max(high, value))


def _divided(above: Floats, below: Floats) -> Floats:
    result: Floats = np.divide(above, below, out=np.full_like(above, math.nan), where=below != 0)
    return result

"""Shares of decisions with 95 % intervals, and whether two of them differ.

Decisions of one answer hang together: where a model goes astray it does so for a while. So requests, not decisions,
are taken as drawn at random, and a share is a ratio of two sums over requests (W. G. Cochran, "Sampling techniques",
3rd ed. 1977, section 2.11 and 9A; linearised variance). Such a variance over that of independent decisions is the
design effect; the number of decisions divided by it is how many independent ones they are worth (L. Kish, "Survey
sampling", 1965, section 8.2), and with that number the interval is Wilson's, good for shares near 0 and 1 (JASA 22,
1927). A design effect below 1 counts as 1: it is mostly chance, and none is seen where nothing was hit.
"""

import math
from dataclasses import dataclass
from typing import Self

from ..errors import InvalidArgument

_Z_975 = 1.959963984540054
_Z_80 = 0.8416212335729143
"""Standard normal quantiles of 0.975 and 0.8."""
MIN_REQUESTS = 30
"""On either side, below which a comparison says nothing: variances of fewer are too rough."""


@dataclass(slots=True)
class RatioSums:
    """Sums over requests, of which x of n decisions were hits: all that a share and its variance need."""

    num_requests: int = 0
    """With at least one decision."""
    hits: int = 0
    trials: int = 0
    hits_squared: int = 0
    hits_times_trials: int = 0
    trials_squared: int = 0

    def add(self, hits: int, trials: int) -> None:
        """A request is over, with these."""
        if trials == 0:
            return
        self.num_requests += 1
        self.hits += hits
        self.trials += trials
        self.hits_squared += hits * hits
        self.hits_times_trials += hits * trials
        self.trials_squared += trials * trials

    @property
    def share(self) -> float:
        """Hits among trials; NaN without trials."""
        return self.hits / self.trials if self.trials else math.nan

    @property
    def variance(self) -> float:
        """Of the share; NaN for fewer than two requests. Never below that of independent decisions.

        The floor takes half a hit more and half a miss more, so that a share of 0 has a variance, too.
        """
        if self.num_requests < 2:
            return math.nan
        share, m = self.share, self.num_requests
        residuals = self.hits_squared - 2 * share * self.hits_times_trials + share**2 * self.trials_squared
        clustered = max(residuals, 0.0) * m / (m - 1) / self.trials**2
        near = (self.hits + 0.5) / (self.trials + 1)
        return max(clustered, near * (1 - near) / self.trials)


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of decisions with its 95 % interval."""

    hits: int
    trials: int
    num_requests: int
    share: float | None
    """None where there was no trial."""
    low: float
    high: float
    """0 and 1 where fewer than two requests were seen: one answer tells nothing of others."""

    @classmethod
    def of(cls, sums: RatioSums) -> Self:
        """The share that the sums tell."""
        counts = sums.hits, sums.trials, sums.num_requests
        if not sums.trials:
            return cls(*counts, None, 0.0, 1.0)
        share = sums.share
        if sums.num_requests < 2:
            return cls(*counts, share, 0.0, 1.0)
        near = (sums.hits + 0.5) / (sums.trials + 1)
        worth = min(near * (1 - near) / sums.variance, float(sums.trials))
        return cls(*counts, share, *_wilson(share, worth, _t_975(sums.num_requests - 1)))


@dataclass(frozen=True, slots=True)
class Difference:
    """Share of B less that of A, and what can be said of it."""

    a: Rate
    b: Rate
    difference: float
    low: float
    high: float
    """95 % interval of the difference."""
    effect: float
    """Cohen's h: 2 asin(sqrt(b)) - 2 asin(sqrt(a)). 0.2 is called small, 0.5 medium, 0.8 large."""
    p_value: float
    """Of a difference as large by chance alone, two-sided."""
    needed_requests: int
    """On each side, so that a difference of the size that matters is seen with a probability of 80 %."""
    has_enough: bool
    """Whether either side has `MIN_REQUESTS`."""


def differ(a: RatioSums, b: RatioSums, matters: float) -> Difference | None:
    """Compare two shares of different requests (two-proportion z-test with the variances above).

    Args:
        a: one side.
        b: the other.
        matters: smallest difference that is worth seeing.

    Returns:
        None where a side has fewer than two requests.

    Raises:
        InvalidArgument: `matters` is not between 0 and 1.
    """
    if not 0 < matters < 1:
        raise InvalidArgument(f"--matters must be above 0 and below 1, not {matters}", field="matters")
    if min(a.num_requests, b.num_requests) < 2:
        return None
    difference = b.share - a.share
    error = math.sqrt(a.variance + b.variance)
    one_request = a.variance * a.num_requests + b.variance * b.num_requests
    return Difference(
        a=Rate.of(a),
        b=Rate.of(b),
        difference=difference,
        low=max(difference - _Z_975 * error, -1.0),
        high=min(difference + _Z_975 * error, 1.0),
        effect=2 * math.asin(math.sqrt(b.share)) - 2 * math.asin(math.sqrt(a.share)),
        p_value=math.erfc(abs(difference) / error / math.sqrt(2)),
        needed_requests=max(MIN_REQUESTS, math.ceil((_Z_975 + _Z_80) ** 2 * one_request / matters**2)),
        has_enough=min(a.num_requests, b.num_requests) >= MIN_REQUESTS,
    )


def adjusted(p_values: list[float]) -> list[float]:
    """The p-values of tests that are read together (S. Holm, Scand. J. Statist. 6, 1979), in the same order."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    result, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        result[i] = highest
    return result


def _wilson(share: float, worth: float, quantile: float) -> tuple[float, float]:
    weight = quantile**2 / worth
    centre = share + weight / 2
    reach = quantile * math.sqrt(share * (1 - share) / worth + weight / (4 * worth))
    low, high = (centre - reach) / (1 + weight), (centre + reach) / (1 + weight)
    # The share lies between them, whatever rounding says.
    return min(max(low, 0.0), share), max(min(high, 1.0), share)


def _t_975(freedom: int) -> float:
    """Student's quantile of 0.975 (M. Abramowitz, I. Stegun, "Handbook of mathematical functions", 26.7.5)."""
    if freedom < len(_FEW_T):
        return _FEW_T[freedom]
    z = _Z_975
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


_FEW_T = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571)
"""For few degrees of freedom, where the expansion fails."""

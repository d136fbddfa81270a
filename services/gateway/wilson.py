"""Bounds for a share that was seen in a sample."""

import math

_Z_95 = 1.959963984540054
"""Standard normal quantile of 0.975."""


def wilson_interval(num_hits: int, num_trials: int) -> tuple[float, float]:
    """The 95 % score interval of a binomial share, (low, high) in [0, 1].

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927),
    209-212: the shares p for which `|num_hits / num_trials - p| <= z * sqrt(p * (1 - p) / num_trials)`. Good for
    few trials and for shares near 0 and 1, other than the textbook's `p +- z * s`. Without trials, (0, 1).
    """
    if num_trials == 0:
        return 0.0, 1.0
    share, weight = num_hits / num_trials, _Z_95**2 / num_trials
    centre = share + weight / 2
    reach = _Z_95 * math.sqrt(share * (1 - share) / num_trials + weight / (4 * num_trials))
    low, high = (centre - reach) / (1 + weight), (centre + reach) / (1 + weight)
    # The share lies between them, whatever rounding says.
    return min(max(low, 0.0), share), max(min(high, 1.0), share)

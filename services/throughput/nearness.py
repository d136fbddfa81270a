"""Whether two settings are so near each other that a model of either is good for both."""

import numpy as np

from .setting import Floats, Setting, floats


def are_near(first: Setting, second: Setting, part: float, max_rows: int) -> bool:
    """Whether no number of one differs from the other's by more than a part of it; times, by a part of a step.

    Curves are compared up to `max_rows`: beyond what is seen they are guesses, and change with every step.
    """
    names = [tier.name for tier in (first.home, *first.larger)]
    if names != [tier.name for tier in (second.home, *second.larger)] or first.max_ahead != second.max_ahead:
        return False
    mine, others = _numbers(first, max_rows), _numbers(second, max_rows)
    return mine.shape == others.shape and bool(np.all(np.abs(mine - others) <= part * np.maximum(mine, others)))


def _numbers(setting: Setting, max_rows: int) -> Floats:
    """What a prediction comes from, each a positive number; small ones next to what they are added to."""
    tiers = (setting.home, *setting.larger)
    step_s = setting.home.alone.at(1)
    sizes = [2**power for power in range(max(max_rows, 1).bit_length())]
    tables = [curve.table(sizes[-1]) for tier in tiers for curve in (tier.alone, tier.co_running)]
    numbers = [float(value) for table in tables for value in table[sizes]]
    numbers += [tier.stay.mean for tier in tiers]
    numbers += [1.0 + share for share in setting.shares]
    numbers += [setting.tokens_per_cycle, 1.0 + setting.confirmed]
    numbers += [step_s + setting.hand_off_s, 1.0 / setting.tokens_per_request + 1e-9, step_s + setting.request_s]
    return floats(numbers)

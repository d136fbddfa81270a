"""How long it takes until a request has its first token."""

import numpy as np

from .setting import Prediction, Setting


def first_token_s(setting: Setting, found: Prediction) -> float:
    """Mean time in seconds from the start of a request to its first token.

    What a request takes besides its tokens (all of `request_s`, though the way out belongs to the last token), half
    a step of the home until one begins with it, that step, and where the first token is handed off, the visit: the
    hand-off, the wait for company, and a step of the larger tier. A mean over requests that find a mesh as it is in
    the long run; prompts of others that delay steps are in it as far as they are in the curves.
    """
    step_s = home_step_s(setting, found)
    handed_off = float(setting.home.stay.start_row @ setting.home.stay.ends)
    visit_s = sum(
        share * (setting.hand_off_s + wait_s + large_step_s(setting, found, tier))
        for tier, (share, wait_s) in enumerate(zip(setting.shares, found.waits_s, strict=True))
    )
    waits_for_step_s = 0.5 * step_s * found.busy[0] if found.num_requests > 1 else 0.0
    return setting.request_s + waits_for_step_s + step_s + handed_off * visit_s


def large_step_s(setting: Setting, found: Prediction, tier: int) -> float:
    """Mean step of a larger tier: between alone and co-running by how busy the home is, as if by chance."""
    curves = setting.larger[tier]
    rows, beside = found.batches[tier], _beside(setting, found, found.busy[0])
    return (1.0 - beside) * curves.alone.at(rows) + beside * curves.co_running.at(rows)


def home_step_s(setting: Setting, found: Prediction) -> float:
    """Mean step of the home: between alone and co-running by how busy larger tiers are, with the rows that are there.

    Rows by Little's law: all requests but those that are away or before their first token; all of them where the
    home goes on meanwhile.
    """
    visits_per_s = found.tokens_per_s / setting.tokens_per_cycle
    away_s = sum(
        share * (setting.hand_off_s + found.waits_s[tier] + setting.larger[tier].stay.mean
                 * large_step_s(setting, found, tier))
        for tier, share in enumerate(setting.shares)
    )  # fmt: skip
    starting = found.tokens_per_s / setting.tokens_per_request * setting.request_s
    rows = found.num_requests - starting - (0.0 if setting.max_ahead else visits_per_s * away_s)
    rows = float(np.clip(rows, 1.0, found.num_requests))
    beside = _beside(setting, found, sum(found.busy[1:]))
    return (1.0 - beside) * setting.home.alone.at(rows) + beside * setting.home.co_running.at(rows)


def _beside(setting: Setting, found: Prediction, busy: float) -> float:
    """Share of a step's time in which others are at work; a lone request is at one tier at a time."""
    return 0.0 if found.num_requests == 1 and not setting.max_ahead else min(busy, 1.0)

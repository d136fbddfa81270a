"""Holds the share of tokens that go to the large model at a target, by moving the threshold.

Each decision moves the threshold a little: up where the share is too high, down where it is too low. It comes to
rest where a decision sends a token to the large model with just the target's probability (stochastic approximation,
Robbins and Monro 1951), wherever the scores of the day lie. The step is taken on the logit of the threshold's place
in its range, since probabilities of a score pile up near their ends.
"""

import math
from dataclasses import dataclass

from ..config import HomeSettings
from ..errors import StartupError
from ..policies.policy import Policy

_STEP = 0.05
"""Of the logit, for a decision that was all wrong at a share of one half."""
_EDGE = 1e-8
"""How near to an end of the parameter's range the threshold may come, as a part of it."""


@dataclass(slots=True)
class ShareControl:
    """One threshold, for all requests that leave it to the mesh. Belongs to the decode thread."""

    threshold: float
    low: float
    high: float
    minimum: float
    maximum: float
    target: float
    raises: bool
    """Whether a higher threshold sends fewer tokens to the large model."""

    @classmethod
    def of(cls, settings: HomeSettings, policy: Policy, start: float | None) -> "ShareControl | None":
        """The control that the settings ask for, if they do; it begins at the policy's threshold.

        Args:
            settings: of the home.
            policy: its default one.
            start: the threshold's default; None where requests must name it.

        Raises:
            StartupError: the policy has no threshold to move, or the bounds are not in its range.
        """
        if settings.target_share is None:
            return None
        found = [parameter for parameter in policy.parameters if parameter.name == "threshold"]
        ends = [(end or {}).get("threshold") for end in (policy.never, policy.always)]
        if not found or None in ends or start is None:
            raise StartupError(
                f"slm.target_share needs a policy with a threshold to move, and {policy.name} has none",
                field="slm.target_share",
            )
        never, always = (end for end in ends if end is not None)
        minimum, maximum = found[0].minimum, found[0].maximum
        low, high = settings.threshold_bounds or (minimum, maximum)
        if not minimum <= low < high <= maximum:
            raise StartupError(
                f"slm.threshold_bounds must be two thresholds of {policy.name}, the lower one first, from {minimum:g} "
                f"to {maximum:g}",
                field="slm.threshold_bounds",
            )
        start = min(max(start, low), high)
        return cls(start, low, high, minimum, maximum, settings.target_share, raises=never > always)

    def observe(self, *, is_routed: bool) -> None:
        """A decision was made at this threshold."""
        width = self.maximum - self.minimum
        place = min(max((self.threshold - self.minimum) / width, _EDGE), 1 - _EDGE)
        # A rare event says more when it comes.
        step = _STEP / math.sqrt(4 * self.target * (1 - self.target))
        moved_by = step * (is_routed - self.target)
        logit = math.log(place / (1 - place)) + (moved_by if self.raises else -moved_by)
        moved = self.minimum + width / (1 + math.exp(-logit))
        self.threshold = min(max(moved, self.low), self.high)

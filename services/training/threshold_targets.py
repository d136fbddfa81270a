"""Chooses the threshold that meets a target on labelled tokens, for whatever side of it goes to the large model."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import StartupError
from ..router.calibration_file import Target

_MOST = 1.0 - 2.0**-24
"""The largest float32 below 1. Policies keep scores below 1 and above 0, so that thresholds of 0 and 1 mean all and
none; see `policies.threshold_rule`."""


@dataclass(frozen=True, slots=True)
class Side:
    """Which scores go to the large model, given a threshold."""

    is_low: bool
    """Those below it, and not those above."""
    takes_equal: bool
    """Those that equal it, too."""

    @property
    def all(self) -> float:
        """The threshold that sends all."""
        return 1.0 if self.is_low else 0.0

    @property
    def none(self) -> float:
        """The threshold that sends none."""
        return 0.0 if self.is_low else 1.0

    def urgency(self, scores: Tensor) -> Tensor:
        """The higher, the sooner it goes; float32 [n]."""
        within = scores.clamp(max=_MOST)
        return -within if self.is_low else within

    def sent(self, scores: Tensor, threshold: float) -> Tensor:
        """Bool [n]."""
        if threshold in (self.all, self.none):
            return torch.full(scores.shape, threshold == self.all)
        urgency, limit = self.urgency(scores).double(), -threshold if self.is_low else threshold
        return urgency >= limit if self.takes_equal else urgency > limit

    def just_taking(self, urgency: float) -> float:
        """The threshold that sends what is so urgent, and nothing that is less so."""
        limit = urgency if self.takes_equal else math.nan
        if not self.takes_equal:
            limit = float(torch.tensor(urgency).nextafter(torch.tensor(-2.0)))
        return min(max(-limit if self.is_low else limit, 0.0), 1.0)


_SIDES = {"citer": Side(is_low=True, takes_equal=False), "co-llm": Side(is_low=False, takes_equal=False)}
_R2R = Side(is_low=False, takes_equal=True)


def side_of(scorer: str) -> Side:
    """By a scorer's name, as the policy of that name does. R2R's routers may be called anything."""
    return _SIDES.get(scorer, _R2R)


def choose_threshold(side: Side, scores: Tensor, positives: Tensor, target: Target) -> float:
    """The threshold that comes closest to a target without missing it.

    Args:
        side: what goes to the large model.
        scores: float32 [n] in [0, 1].
        positives: float32 [n], 1 where the proposal diverges.
        target: a recall, of which at least so much is found with as few tokens as can be; or a share, of which at
            most so much goes to the large model. A cost is a share by then.

    Raises:
        StartupError: no threshold meets it.
    """
    urgency, order = side.urgency(scores).sort(descending=True, stable=True)
    ends = torch.ones(len(scores), dtype=torch.bool)
    ends[:-1] = urgency[:-1] != urgency[1:]
    counts = ends.nonzero().squeeze(-1) + 1
    if target.kind == "recall":
        found = positives[order].double().cumsum(0)[counts - 1]
        if not float(found[-1]):
            raise StartupError(
                f"no divergent token among the {len(scores)} to calibrate on, so recall cannot be a target: label more "
                "problems, or choose a share",
                field="target-recall",
            )
        enough = found >= target.value * float(found[-1]) - 1e-9
        count = int(counts[int(enough.nonzero()[0])])
    else:
        allowed = counts <= target.value * len(scores) + 1e-9
        count = int(counts[allowed][-1]) if bool(allowed.any()) else 0
        if not count and target.value > 0:
            raise StartupError(
                f"no threshold sends a share of at most {target.value:g}: the {int(counts[0])} of {len(scores)} tokens "
                f"that would go first have one and the same score; choose {int(counts[0]) / len(scores):.4g} or more, "
                "or 0",
                field="target-share",
            )
    if count in (0, len(scores)):
        return side.all if count else side.none
    return side.just_taking(float(urgency[count - 1]))

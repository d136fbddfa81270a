"""The model of throughput as the gateway asks it, and what it may answer."""

import math
from collections.abc import Sequence
from typing import Literal, Protocol

from ...throughput.chain import Chain
from ...throughput.setting import Prediction, Setting
from ...throughput.solve import Solver

Fault = Literal["error", "not_finite", "not_positive", "threshold", "slow"]
"""How a model can fail: it raised something, its throughput or a time was NaN or infinite, or 0 or less, a threshold
was none, or it took too long."""
FAULTS: tuple[Fault, ...] = ("error", "not_finite", "not_positive", "threshold", "slow")


class ThroughputModel(Protocol):
    """Predicts what a mesh under a load does. Called by one thread at a time, which need not be the same."""

    def best(self, setting: Setting, num_requests: int) -> Prediction:
        """With the launch thresholds at which throughput is highest."""

    def predict(self, setting: Setting, num_requests: int, thresholds: Sequence[int]) -> Prediction:
        """With these launch thresholds."""


class ChainModel:
    """The chain of `throughput.chain`, with a solver that remembers where to look first."""

    def __init__(self) -> None:
        self._solver = Solver()

    def best(self, setting: Setting, num_requests: int) -> Prediction:
        """See `ThroughputModel`."""
        return self._solver.best(setting, num_requests)

    def predict(self, setting: Setting, num_requests: int, thresholds: Sequence[int]) -> Prediction:
        """See `ThroughputModel`."""
        # As coarsely as the solver does, so that the two can be compared.
        (prediction,) = Chain(setting, num_requests, is_coarse=True).predict([thresholds])
        return prediction


def fault_of(prediction: Prediction, num_requests: int, num_larger: int) -> Fault | None:
    """What is wrong with an answer for so many requests in a mesh of so many larger tiers; None where nothing is."""
    numbers = (prediction.tokens_per_s, *prediction.waits_s)
    if not all(math.isfinite(number) for number in numbers):
        return "not_finite"
    if prediction.tokens_per_s <= 0.0 or min(numbers) < 0.0:
        return "not_positive"
    thresholds = prediction.thresholds
    if not len(thresholds) == len(prediction.waits_s) == num_larger:
        return "threshold"
    if not all(isinstance(threshold, int) and 1 <= threshold <= num_requests for threshold in thresholds):
        return "threshold"
    return None

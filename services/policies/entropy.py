"""Route by the small model's uncertainty, the cheap rule published beside R2R (arXiv 2505.21600)."""

from collections.abc import Sequence

from .policy import Feature, Proposals, setting, threshold
from .threshold_rule import ThresholdRule


class Entropy(ThresholdRule):
    """The large model writes where the entropy of the small model's distribution reaches the threshold."""

    name = "entropy"
    summary = "the large model writes where the small one's entropy (nats) is at or above the threshold"
    parameters = (threshold(0.0, 20.0, 0.45, "nats"),)
    features = frozenset({Feature.ENTROPY})
    never = setting(threshold=20.0)
    always = setting(threshold=0.0)

    def numbers(self, proposals: Proposals) -> Sequence[float]:
        """The entropies."""
        return proposals.entropies

    def suffices(self, number: float, threshold: float) -> bool:
        """Entropy >= threshold goes to the large model."""
        return number < threshold

"""Route by the small model's uncertainty, the cheap rule published beside R2R (arXiv 2505.21600)."""

from .policy import HOME, Feature, Policy, Proposals, Threshold


class Entropy(Policy):
    """The large model writes where the entropy of the small model's distribution reaches the threshold."""

    name = "entropy"
    summary = "the large model writes where the small one's entropy (nats) is at or above the threshold"
    features = frozenset({Feature.ENTROPY})
    threshold = Threshold(minimum=0.0, maximum=20.0, default=0.45)

    def route(self, proposals: Proposals) -> list[int]:
        """Entropy >= threshold goes to tier 1."""
        return [
            HOME if entropy < request.threshold else 1
            for entropy, request in zip(proposals.entropies, proposals.requests, strict=True)
        ]

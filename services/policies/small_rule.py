"""What rules have in common that look at the small model's uncertainty at every place, and remember."""

from abc import abstractmethod

from .dirichlet import aleatoric
from .policy import ACCEPT, Feature, Policy, Proposals, RequestView, Verdict, reject


class SmallRule(Policy):
    """The small model proposes at every place, also while the large one writes; the rule says who writes this one."""

    features = frozenset({Feature.TOP_LOGITS, Feature.ENTROPY})

    @abstractmethod
    def is_large(self, request: RequestView, aleatoric: float, entropy: float) -> bool:
        """Whether the large model writes, from the small one's uncertainty in nats; updates the request's memory.

        `aleatoric` may be NaN, which must send the token to the large model and must not stay in the memory.
        """

    def route(self, proposals: Proposals) -> list[Verdict]:
        """Where the rule says so, the large model writes one token in the proposal's place."""
        uncertain = aleatoric(proposals.top_logits)
        return [
            reject(request.large) if self.is_large(request, value, entropy) else ACCEPT
            for request, value, entropy in zip(proposals.requests, uncertain, proposals.entropies, strict=True)
        ]

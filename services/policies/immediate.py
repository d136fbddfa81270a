"""Route by the aleatoric uncertainty of the small model's ten best logits: R2R's code, `ImmediateSwitching`."""

import math

from .dirichlet import MAX_ALEATORIC, aleatoric, epistemic
from .policy import ACCEPT, Feature, Parameter, Policy, Proposals, RequestView, Verdict, reject, setting, threshold


class Immediate(Policy):
    """The large model writes where the small one's uncertainty reaches every limit that is set.

    Published values of the other limits: epistemic 0.055. At 0, their default, they hold for every token.
    """

    name = "immediate"
    summary = "the large model writes where the small one's aleatoric uncertainty is at or above the threshold"
    parameters = (
        threshold(0.0, MAX_ALEATORIC, 2.275, "aleatoric uncertainty, nats"),
        Parameter("epistemic", "epistemic uncertainty that must be reached too; 0 asks for none", 0.0, 1.0, 0.0),
        Parameter("entropy", "entropy in nats that must be reached too; 0 asks for none", 0.0, 20.0, 0.0),
    )
    features = frozenset({Feature.TOP_LOGITS, Feature.ENTROPY})
    never = setting(threshold=MAX_ALEATORIC)
    always = setting(threshold=0.0)

    def route(self, proposals: Proposals) -> list[Verdict]:
        """NaN goes to the large model."""
        columns = zip(aleatoric(proposals.top_logits), proposals.top_logits, proposals.entropies, strict=True)
        return [
            reject(request.large) if _is_unsure(request, value, epistemic(top), entropy) else ACCEPT
            for request, (value, top, entropy) in zip(proposals.requests, columns, strict=True)
        ]


def _is_unsure(request: RequestView, aleatoric: float, epistemic: float, entropy: float) -> bool:
    limits = ((aleatoric, "threshold"), (epistemic, "epistemic"), (entropy, "entropy"))
    return math.isnan(aleatoric) or not any(value < request.number(name) for value, name in limits)

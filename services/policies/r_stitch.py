"""R-Stitch (arXiv 2507.17307): each model writes on until its own entropy says otherwise."""

import math
import sys

from .policy import ACCEPT, HOME, Feature, Policy, Proposals, RequestView, Verdict, Visit, reject, setting, threshold
from .threshold_rule import within


class RStitch(Policy):
    """The small model hands over where it is unsure, the large one hands back where it is sure (section 3.2).

    The measure is the entropy of the model that writes, over the logarithm of the number of tokens that the
    tokenizer knows. The small model's unsure token is dropped, the large model's tokens are all kept.
    """

    name = "r-stitch"
    summary = "the model that writes goes on while its entropy, over log of the vocabulary, says so"
    parameters = (threshold(0.0, 1.0, 0.03, "entropy over log of the vocabulary's size, of either model"),)
    features = frozenset({Feature.ENTROPY})
    routes_at_tiers = True
    never = setting(threshold=1.0)
    always = setting(threshold=0.0)

    def route(self, proposals: Proposals) -> list[Verdict]:
        """Above the threshold, at home: the token is dropped. On the large model: it is kept, and the visit goes on."""
        verdicts = []
        for entropy, request in zip(proposals.entropies, proposals.requests, strict=True):
            if _share(entropy, request.num_tokens) <= request.threshold:
                verdicts.append(ACCEPT)
            elif proposals.tier == HOME:
                verdicts.append(reject(request.large))
            else:
                verdicts.append(Verdict(keeps=True, tier=proposals.tier))
        return verdicts

    def send(self, request: RequestView, tier: int) -> Visit:
        """The rest of the answer: the large model decides when the visit ends."""
        return Visit(request.num_left)


def _share(entropy: float, num_tokens: int) -> float:
    """Entropy over that of the uniform distribution. Above 0 and not above 1, whatever float32 made of it; or NaN."""
    return within(entropy / math.log(max(num_tokens, 2)), sys.float_info.min, 1.0)

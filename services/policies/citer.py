"""CITER (arXiv 2502.01976): a small network predicts whether the small model suffices for the next token."""

from .policy import setting, threshold
from .threshold_rule import ThresholdRule


class Citer(ThresholdRule):
    """The large model writes where the small one is not sure enough to suffice, one token a visit.

    The network sees the hidden state before the token, so the small model's proposal plays no part in it.
    """

    name = "citer"
    summary = "the large model writes where CITER's probability that the small one suffices is below the threshold"
    parameters = (threshold(0.0, 1.0, 0.98, "probability that the small model suffices"),)
    scorer = "citer"
    never = setting(threshold=0.0)
    always = setting(threshold=1.0)

    def suffices(self, number: float, threshold: float) -> bool:
        """Score < threshold goes to the large model (section 3.1)."""
        return number >= threshold

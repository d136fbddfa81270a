"""Co-LLM (arXiv 2403.03870): the small model learns, by one more row of its head, when to defer."""

from .policy import setting, threshold
from .threshold_rule import ThresholdRule


class CoLlm(ThresholdRule):
    """The large model writes where the probability of deferring passes the threshold, one token a visit."""

    name = "co-llm"
    summary = "the large model writes where Co-LLM's probability of deferring is above the threshold"
    parameters = (threshold(0.0, 1.0, 0.15, "probability that the small model should defer"),)
    scorer = "co-llm"
    never = setting(threshold=1.0)
    always = setting(threshold=0.0)

    def suffices(self, number: float, threshold: float) -> bool:
        """Score > threshold goes to the large model (section 2.3)."""
        return number <= threshold

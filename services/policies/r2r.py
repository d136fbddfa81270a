"""R2R (arXiv 2505.21600): a classifier predicts whether the small model's token would change the answer."""

from .policy import setting, threshold
from .threshold_rule import ThresholdRule


class R2R(ThresholdRule):
    """The large model writes where the classifier's score reaches the threshold, one token a visit."""

    name = "r2r"
    summary = "the large model writes where R2R's classifier score is at or above the threshold"
    parameters = (threshold(0.0, 1.0, 0.5, "probability that the proposal would change the answer"),)
    scorer = "r2r"
    never = setting(threshold=1.0)
    always = setting(threshold=0.0)

    def suffices(self, number: float, threshold: float) -> bool:
        """Score >= threshold goes to the large model (section 3.2)."""
        return number < threshold

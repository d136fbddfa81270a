"""R2R (arXiv 2505.21600): a classifier predicts whether the small model's token would change the answer."""

from .policy import HOME, Policy, Proposals, Threshold


class R2R(Policy):
    """The large model writes where the classifier's score reaches the threshold, one token a visit."""

    name = "r2r"
    summary = "the large model writes where R2R's classifier score is at or above the threshold"
    scorer = "r2r"
    threshold = Threshold(minimum=0.0, maximum=1.0, default=0.5)

    def route(self, proposals: Proposals) -> list[int]:
        """Score >= threshold goes to tier 1, and so does NaN: what cannot be judged is not trusted."""
        return [
            HOME if score < request.threshold else 1
            for score, request in zip(proposals.scores, proposals.requests, strict=True)
        ]

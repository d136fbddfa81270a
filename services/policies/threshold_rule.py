"""What rules have in common that compare one number of each proposal with the request's threshold."""

import sys
from abc import abstractmethod
from collections.abc import Sequence

from .policy import ACCEPT, Policy, Proposals, Verdict, reject

_LEAST = sys.float_info.min
_MOST = 1.0 - 2.0**-24
"""The largest float32 below 1."""


class ThresholdRule(Policy):
    """The large model writes one token where the number and the threshold say so."""

    @abstractmethod
    def suffices(self, number: float, threshold: float) -> bool:
        """Whether the small model's token stands. Must be False for NaN: what cannot be judged is not trusted."""

    def numbers(self, proposals: Proposals) -> Sequence[float]:
        """The number of each proposal: a scorer's probability, unless overridden.

        A sigmoid reaches neither 0 nor 1, as float32 makes it; so that thresholds of 0 and 1 mean all and
        nothing, its numbers are kept between them.
        """
        return [within(score, _LEAST, _MOST) for score in proposals.scores]

    def route(self, proposals: Proposals) -> list[Verdict]:
        """The proposal stands, or the large model writes in its place."""
        return [
            ACCEPT if self.suffices(number, request.threshold) else reject(request.large)
            for number, request in zip(self.numbers(proposals), proposals.requests, strict=True)
        ]


def within(number: float, least: float, most: float) -> float:
    """The number, or the end of the range that it lies beyond; NaN stays NaN."""
    return min(max(number, least), most)

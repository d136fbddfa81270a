"""Whether a log's scores and share are those that the router's threshold was set on."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..router.manifest import ScoreQuantiles, Share
from .rates import Rate

PARTED = 0.25
"""Population stability index over which two distributions have parted, by common use; below 0.1 they have not."""
LEAST_SCORES = 500
"""Below so many the index is mostly chance: about (bins - 1) / scores where nothing has changed."""
_PRIOR = 0.5
"""Added to each bin's count, so that an empty one is not infinitely far from what it was."""


class CalibratedRouter(BaseModel):
    """What a manifest or a calibration says of scores; the same keys in the manifests of all scorers."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Of the policy."""
    threshold: Share
    score_quantiles: ScoreQuantiles = ()
    calibrated_share: Share | None = None


class ScoreBins:
    """Counts of scores between the quantiles of others."""

    def __init__(self, quantiles: Sequence[float]) -> None:
        """`quantiles`: at even steps, ascending. Equal ones, of scores that many tokens have, bound one bin."""
        step = 1 / (len(quantiles) + 1)
        last = {quantile: (index + 1) * step for index, quantile in enumerate(quantiles)}
        self._edges = list(last)
        bounds = [0.0, *last.values(), 1.0]
        self.expected = [high - low for low, high in pairwise(bounds)]
        """Parts of the scores at calibration."""
        self.counts = [0] * len(self.expected)

    def add(self, score: float) -> None:
        """Count a score."""
        self.counts[bisect_left(self._edges, score)] += 1

    @property
    def parts(self) -> list[float]:
        """Parts of the scores that were counted."""
        total = sum(self.counts) + _PRIOR * len(self.counts)
        return [(count + _PRIOR) / total for count in self.counts]

    @property
    def index(self) -> float:
        """Population stability index: sum of (part - expected) ln(part / expected)."""
        return sum(
            (part - expected) * math.log(part / expected)
            for part, expected in zip(self.parts, self.expected, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Drift:
    """Scores and share of a group against those at calibration."""

    num_scores: int
    index: float | None
    """None where there are too few."""
    verdict: Literal["as at calibration", "parted", "too few scores"]
    expected: list[float]
    parts: list[float]
    calibrated_share: float | None
    """None where it is not known, or was measured at another threshold than is in force here."""
    share_fits: bool | None
    """Whether it lies in the interval of the share here."""


def drift_of(scores: ScoreBins, routed: Rate, *, threshold: float | None, router: CalibratedRouter) -> Drift:
    """What is to be said of a group's scores, at one threshold or (None) at several."""
    num_scores = sum(scores.counts)
    index = scores.index if num_scores >= LEAST_SCORES else None
    is_same = threshold is not None and math.isclose(threshold, router.threshold, rel_tol=1e-6)
    share = router.calibrated_share if is_same else None
    return Drift(
        num_scores=num_scores,
        index=index,
        verdict="too few scores" if index is None else "parted" if index > PARTED else "as at calibration",
        expected=scores.expected,
        parts=scores.parts,
        calibrated_share=share,
        share_fits=None if share is None else routed.low <= share <= routed.high,
    )

"""What the labels came to, next to what R2R published (arXiv 2505.21600): `report.json`."""

from typing import Literal

from ..router.manifest import Part, Share
from ..training.dataset import Kind
from .dataset import DatasetManifest
from .settings import JudgeSettings
from .statistics import PUBLISHED_ENTROPY_RATIO, PUBLISHED_SHARES, FrequencyQuantile

REPORT_FILE = "report.json"

KindName = Literal["identical", "neutral", "divergent"]


class KindReport(Part):
    """One kind of token."""

    kind: KindName
    num_tokens: int
    share: Share
    """Of labelled tokens."""
    published_share: Share


class LabelReport(Part):
    """Of a whole dataset."""

    format: Literal["allroads-label-report"] = "allroads-label-report"
    slm: str
    llm: str
    judge: JudgeSettings
    num_problems: int
    num_finished: int
    num_unfinished: int
    num_failed: int
    num_tokens: int
    """Of finished answers."""
    num_unlabelled: int
    """Of these, differing tokens without a label."""
    kinds: tuple[KindReport, ...]
    divergent_entropy: float | None
    other_entropy: float | None
    entropy_ratio: float | None
    published_entropy_ratio: float = PUBLISHED_ENTROPY_RATIO
    by_frequency: tuple[FrequencyQuantile, ...]


def report_of(manifest: DatasetManifest) -> LabelReport:
    """Put a dataset's counts and statistics next to the published ones."""
    statistics, counts = manifest.statistics, manifest.counts
    return LabelReport(
        slm=manifest.slm.model_id,
        llm=manifest.llm.model_id,
        judge=manifest.run.judge,
        num_problems=manifest.num_asked,
        num_finished=counts.num_finished,
        num_unfinished=counts.num_unfinished,
        num_failed=counts.num_failed,
        num_tokens=statistics.num_tokens,
        num_unlabelled=statistics.num_unlabelled,
        kinds=(
            _kind_report("identical", statistics.num_identical, statistics.share(Kind.IDENTICAL), Kind.IDENTICAL),
            _kind_report("neutral", statistics.num_neutral, statistics.share(Kind.NEUTRAL), Kind.NEUTRAL),
            _kind_report("divergent", statistics.num_divergent, statistics.share(Kind.DIVERGENT), Kind.DIVERGENT),
        ),
        divergent_entropy=statistics.divergent_entropy,
        other_entropy=statistics.other_entropy,
        entropy_ratio=statistics.entropy_ratio,
        by_frequency=statistics.by_frequency,
    )


def _kind_report(name: KindName, count: int, share: float, kind: Kind) -> KindReport:
    return KindReport(kind=name, num_tokens=count, share=share, published_share=PUBLISHED_SHARES[kind])

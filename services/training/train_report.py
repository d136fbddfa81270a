"""What a training came to, in numbers: `report.json` beside the router."""

import json
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor

from ..gateway.wilson import wilson_interval
from ..router.manifest import Part, Quality
from ..router.router_manifest import RouterManifest
from .fitting import Epoch
from .router_fit import RouterRecipe
from .usefulness import chance_pr_auc

_NUM_POINTS = 200
_NUM_BINS = 12


class CurvePoint(Part):
    """What one threshold comes to."""

    threshold: float
    share: float
    """Of tokens at or above it, which go to the large model."""
    recall: float
    precision: float


class ReliabilityBin(Part):
    """Tokens with neighbouring scores."""

    num_tokens: int
    mean_score: float
    frequency: float
    """Share of them that diverge; equals the mean score where scores are probabilities."""


class SplitReport(Part):
    """How well divergent tokens are found on one split."""

    quality: Quality
    recall_interval: tuple[float, float]
    """95 % interval (Wilson), as if tokens were independent."""
    chance_pr_auc: float
    """What a score without meaning might reach."""
    calibration_error: float
    """Mean distance of score and frequency over bins, weighted by tokens."""
    curve: tuple[CurvePoint, ...]
    """By falling threshold."""
    reliability: tuple[ReliabilityBin, ...]
    """By rising score."""


class EpochReport(Part):
    """See `Epoch`."""

    number: int
    train_loss: float
    validation_loss: float


class TrainReport(Part):
    """All of it. It tells no date, so that the same training gives the same report."""

    format: Literal["allroads-train-report"] = "allroads-train-report"
    version: Literal[1] = 1
    recipe: dict[str, Any]
    num_parameters: int
    epochs: tuple[EpochReport, ...]
    best_epoch: int
    """Whose weights were kept."""
    threshold: float
    threshold_rule: str
    validation: SplitReport
    test: SplitReport


def make_report(
    recipe: RouterRecipe,
    epochs: list[Epoch],
    num_parameters: int,
    manifest: RouterManifest,
    validation: SplitReport,
    test: SplitReport,
) -> TrainReport:
    """Put the parts together."""
    return TrainReport(
        recipe=json.loads(json.dumps(asdict(recipe))),
        num_parameters=num_parameters,
        epochs=tuple(EpochReport(**asdict(epoch)) for epoch in epochs),
        best_epoch=min(epochs, key=lambda epoch: epoch.validation_loss).number,
        threshold=manifest.threshold,
        threshold_rule=manifest.threshold_rule,
        validation=validation,
        test=test,
    )


def report_split(quality: Quality, scores: Tensor, positives: Tensor) -> SplitReport:
    """Measure one split; both tensors are float32 [n]."""
    bins = reliability(scores, positives)
    error = sum(part.num_tokens * abs(part.mean_score - part.frequency) for part in bins) / len(scores)
    num_found = round(quality.recall * quality.num_positives)
    return SplitReport(
        quality=quality,
        recall_interval=wilson_interval(num_found, quality.num_positives),
        chance_pr_auc=chance_pr_auc(quality.num_tokens, quality.num_positives),
        calibration_error=error,
        curve=curve(scores, positives),
        reliability=bins,
    )


def curve(scores: Tensor, positives: Tensor, num_points: int = _NUM_POINTS) -> tuple[CurvePoint, ...]:
    """Share, recall and precision of `score >= threshold` by falling threshold, closest where few tokens are chosen."""
    ordered, order = scores.sort(descending=True, stable=True)
    found = positives[order].double().cumsum(0)
    num_chosen = torch.logspace(0, torch.tensor(float(len(scores))).log10(), num_points).round().long()
    # All tokens of one score are chosen together.
    last = torch.searchsorted(-ordered, -ordered[num_chosen - 1], right=True).unique()
    total = max(float(found[-1]), 1.0)
    return tuple(
        CurvePoint(
            threshold=float(ordered[count - 1]),
            share=count / len(scores),
            recall=float(found[count - 1]) / total,
            precision=float(found[count - 1]) / count,
        )
        for count in last.tolist()
    )


def reliability(scores: Tensor, positives: Tensor, num_bins: int = _NUM_BINS) -> tuple[ReliabilityBin, ...]:
    """Scores against frequencies in bins, half of them by tokens and half by positives.

    Bins of equal width or size would put nearly all positives of a rare class into one.
    """
    ordered, order = scores.sort(stable=True)
    right = positives[order].double()
    found = right.cumsum(0)
    steps = torch.arange(1, num_bins // 2, dtype=torch.float64) / (num_bins // 2)
    ends = torch.cat((
        torch.searchsorted(found, steps * found[-1]) + 1,
        (steps * len(scores)).long(),
        torch.tensor([len(scores)]),
    )).unique()  # fmt: skip
    begin, bins = 0, []
    for end in ends.tolist():
        if end > begin:
            part = slice(begin, end)
            bins.append(
                ReliabilityBin(
                    num_tokens=end - begin,
                    mean_score=float(ordered[part].double().mean()),
                    frequency=float(right[part].mean()),
                )
            )
        begin = max(begin, end)
    return tuple(bins)

"""A training as a picture: `curves.svg`, the same for the same training."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .train_report import SplitReport, TrainReport

_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_COLOURS = {"validation": "#0072B2", "test": "#D55E00"}
"""Of Okabe and Ito, which differ for colour-blind readers and in grey."""
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "allroads",  # ids of parts are drawn from it, else at random
    "svg.fonttype": "none",  # text stays text
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "axes.axisbelow": True,
}
_LEAST = 1e-6
"""Where logarithmic axes begin."""


def draw_curves(report: TrainReport, path: Path) -> None:
    """Losses, precision against recall, reliability, and what each threshold comes to."""
    splits = {"validation": report.validation, "test": report.test}
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10.0, 7.5), layout="constrained")
        losses, precision, reliability, shares = figure.subplots(2, 2).flat
        _draw_losses(losses, report)
        _draw_precision(precision, splits)
        _draw_reliability(reliability, splits)
        _draw_shares(shares, splits["test"], report.threshold)
        figure.savefig(path, format="svg", metadata=_NO_METADATA)


def _draw_losses(axes: Axes, report: TrainReport) -> None:
    numbers = [epoch.number for epoch in report.epochs]
    axes.plot(numbers, [epoch.train_loss for epoch in report.epochs], "--", color="0.4", label="training")
    losses = [epoch.validation_loss for epoch in report.epochs]
    axes.plot(numbers, losses, "o-", color=_COLOURS["validation"], markersize=3, label="validation")
    axes.axvline(report.best_epoch, color="0.6", linestyle=":", label="weights that were kept")
    axes.set(title="loss, class weights included", xlabel="epoch")
    axes.legend(frameon=False)


def _draw_precision(axes: Axes, splits: dict[str, SplitReport]) -> None:
    for name, split in splits.items():
        quality, colour = split.quality, _COLOURS[name]
        recalls, precisions = [p.recall for p in split.curve], [p.precision for p in split.curve]
        axes.plot(recalls, precisions, color=colour, label=f"{name}, area {quality.pr_auc:.3f}")
        axes.plot([quality.recall], [quality.precision], "o", color=colour)
        axes.axhline(quality.base_rate, color=colour, linestyle=":", linewidth=1)
    axes.set(title="divergent tokens (dots: the threshold; dotted: chance)", xlabel="recall", ylabel="precision")
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02))
    axes.legend(frameon=False)


def _draw_reliability(axes: Axes, splits: dict[str, SplitReport]) -> None:
    axes.plot([_LEAST, 1], [_LEAST, 1], color="0.6", linestyle=":", label="honest")
    for name, split in splits.items():
        scores = [max(part.mean_score, _LEAST) for part in split.reliability]
        frequencies = [max(part.frequency, _LEAST) for part in split.reliability]
        axes.plot(scores, frequencies, "o-", color=_COLOURS[name], markersize=3, linewidth=1, label=name)
    axes.set(xscale="log", yscale="log", xlabel="mean score", ylabel="share that diverges")
    axes.set(title="reliability (at the bottom: none diverged)")
    axes.legend(frameon=False)


def _draw_shares(axes: Axes, split: SplitReport, threshold: float) -> None:
    thresholds = [max(point.threshold, _LEAST) for point in split.curve]
    axes.plot(thresholds, [p.recall for p in split.curve], color=_COLOURS["test"], label="recall")
    axes.plot(thresholds, [p.share for p in split.curve], "--", color="0.3", label="share of the large model")
    axes.axvline(max(threshold, _LEAST), color="0.6", linestyle=":", label="the threshold")
    axes.set(xscale="log", title="what a threshold comes to, on test", xlabel="threshold", ylim=(0, 1.02))
    axes.legend(frameon=False)

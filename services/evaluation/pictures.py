"""The pictures of a report, as SVG."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..svg_style import COLOURS, as_svg, svg_style
from .figures import NUM_PARTS
from .report_file import ArmFigures, CostFormula, QueryMethod, Reliability, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREY = "0.45"
_CURVES: dict[QueryMethod, tuple[str, str]] = {
    "confidence": ("query level: least confident answers", "--"),
    "random": ("query level: at random", ":"),
    "best": ("query level: the best there could be", "-."),
}


def draw_pareto(report: Report, formula: CostFormula) -> str:
    """Accuracy against cost per answer: all arms with intervals, the front of those measured, query-level curves."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra, and slow to import)

    with svg_style():
        figure = Figure(figsize=(8.5, 4.5), layout="constrained")
        axes = figure.subplots()
        for curve in report.curves:
            if curve.formula == formula:
                label, line = _CURVES[curve.method]
                shown = [100 * accuracy for accuracy in curve.accuracies]
                axes.plot(curve.costs, shown, line, color=_GREY, linewidth=1, label=label)
        points = [(cost, arm) for arm in report.arms if (cost := cost_of(arm, formula)) is not None]
        front = pareto_front([(cost, arm.accuracy.value) for cost, arm in points])
        axes.step(
            [cost for cost, _ in front],
            [100 * accuracy for _, accuracy in front],
            where="post",
            color="0.8",
            linewidth=3,
            zorder=0,
            label="best of what was measured",
        )
        for index, (cost, arm) in enumerate(points):
            _point(axes, cost, arm, index)
        axes.set_xlabel(f"cost of an answer, {formula} formula (billions of parameters x tokens)")
        axes.set_ylabel("right answers, %")
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
        return as_svg(figure)


def _point(axes: "Axes", cost: float, arm: ArmFigures, index: int) -> None:
    value = 100 * arm.accuracy.value
    reach = [[value - 100 * arm.accuracy.low], [100 * arm.accuracy.high - value]]
    marker = {"slm": "s", "llm": "D", "routed": "o", "random": "x", "sweep": "."}[arm.role]
    is_end = arm.role in ("slm", "llm")
    colour = "0.2" if is_end else COLOURS[index % len(COLOURS)]
    axes.errorbar([cost], [value], reach, fmt=marker, color=colour, elinewidth=0.6, markersize=6, label=arm.name)


def draw_positions(arms: Sequence[ArmFigures]) -> str:
    """The larger models' share along the answers."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    with svg_style():
        figure = Figure(figsize=(8.5, 3.2), layout="constrained")
        axes = figure.subplots()
        places = [(part + 0.5) * 100 / NUM_PARTS for part in range(NUM_PARTS)]
        for index, arm in enumerate(arms):
            shares = [100 * share for share in arm.shares_by_position]
            axes.plot(places, shares, "o-", color=COLOURS[index % len(COLOURS)], markersize=4, label=arm.name)
        axes.set_xlabel("place in the answer, % of its length")
        axes.set_ylabel("tokens of the large model, %")
        axes.set_ylim(0, None)
        axes.set_xlim(0, 100)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
        return as_svg(figure)


def draw_reliability(found: Reliability) -> str:
    """How often the large model writes another token, by the score that the small one's had."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    with svg_style():
        figure = Figure(figsize=(5.0, 3.6), layout="constrained")
        axes = figure.subplots()
        scores = [100 * one.mean_score for one in found.bins]
        shares = [100 * one.differs.value for one in found.bins]
        below = [100 * (one.differs.value - one.differs.low) for one in found.bins]
        above = [100 * (one.differs.high - one.differs.value) for one in found.bins]
        axes.errorbar(scores, shares, [below, above], fmt="o-", color=COLOURS[0], elinewidth=0.8, markersize=4)
        top = max(*scores, *shares, 1.0)
        axes.plot([0, top], [0, top], ":", color=_GREY)
        # Scores of rare events are small, and most of them are.
        axes.set_xscale("symlog", linthresh=0.01)
        axes.set_xlim(0, None)
        axes.set_xlabel("mean score in the bin, %")
        axes.set_ylabel("the large model writes another token, %")
        return as_svg(figure)


def cost_of(arm: ArmFigures, formula: CostFormula) -> float | None:
    """Per answer; None where it is not known."""
    cost = arm.published_cost if formula == "published" else arm.full_cost
    return None if cost is None else cost.value


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points (cost, accuracy) that no other one beats at no more cost, by cost."""
    front: list[tuple[float, float]] = []
    for cost, accuracy in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or accuracy > front[-1][1]:
            front.append((cost, accuracy))
    return front

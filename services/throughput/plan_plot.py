"""A plan as a picture: throughput by requests at once, with and without waiting for company."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..svg_style import COLOURS, as_svg, svg_style
from .planning import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_plan(plans: Sequence[tuple[str, Plan]], min_tokens_per_s: float | None) -> str:
    """An SVG of plans by name: all requests together, and each of them with the promise and the capacity."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra, and slow to import)

    with svg_style():
        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        together, each = figure.subplots(1, 2)
        for (name, plan), colour in zip(plans, COLOURS, strict=False):
            numbers = [point.num_requests for point in plan.points]
            speeds = [point.tokens_per_s for point in plan.points]
            at_once = [point.tokens_per_s / (1.0 + point.gain) for point in plan.points]
            together.plot(numbers, speeds, "o-", color=colour, markersize=3, label=name)
            together.plot(numbers, at_once, ":", color=colour, label=f"{name}, launched at once")
            each.plot(numbers, [point.tokens_per_s_each for point in plan.points], "o-", color=colour, markersize=3)
            each.axvline(plan.capacity.num_requests, color=colour, linestyle="--", linewidth=1, label="its capacity")
        if min_tokens_per_s is not None:
            each.axhline(min_tokens_per_s, color="0.3", linestyle=":", linewidth=1, label="the promise")
        _label(together, "token/s, all requests")
        _label(each, "token/s, each request")
        each.legend(frameon=False, fontsize=8)
        together.legend(frameon=False, fontsize=8)
        return as_svg(figure)


def _label(axes: "Axes", what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("requests at once")
    axes.set_ylabel(what)
    axes.set_ylim(0, None)

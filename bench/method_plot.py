"""The trade-off curves of `bench.methods` as an SVG file that is the same for the same figures."""

from collections.abc import Callable, Sequence
from pathlib import Path

from allroads.svg_style import COLOURS, as_svg, svg_style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .method_results import Figures, Results
from .method_settings import Method

_ENDS = {"slm": "s", "llm": "D"}
_CONTROL = "random"
_MARKERS = "os^vDP*Xdph<>"
_SHARES = (0, 1, 5, 10, 20, 40, 60, 80, 100)
_LINES = ("-", "--")
"""Of a method's curves, one for each parameter that is varied."""

Across = Callable[[Figures], float]
"""What of a setting lies on the horizontal axis."""


def draw(results: Results, path: Path) -> None:
    """Accuracy against the large model's share and against speed; routing rules above, judged drafts below."""
    with svg_style():
        figure = Figure(figsize=(10.5, 8.0), layout="constrained")
        axes = figure.subplots(2, 2, sharey=True, sharex="col")
        for row, judges_drafts in enumerate((False, True)):
            own = [method for method in results.methods if method.judges_drafts is judges_drafts]
            methods = [method for method in own if method.policy not in (*_ENDS, _CONTROL)]
            _panel(axes[row, 0], results, methods, lambda one: 100 * one.llm_share)
            _panel(axes[row, 1], results, methods, lambda one: one.over_llm)
            axes[row, 0].set_ylabel("right answers, %")
            axes[row, 0].set_title("judged drafts" if judges_drafts else "routed tokens", loc="left")
            _square_root_scale(axes[row, 0])
            axes[row, 1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
        axes[1, 0].set_xlabel("tokens that the small model did not write, %")
        axes[1, 1].set_xlabel("token/s over those of llm alone, 8 requests")
        path.write_text(as_svg(figure), encoding="utf-8")


def _square_root_scale(axes: Axes) -> None:
    """Small shares are where methods differ."""
    axes.set_xscale("function", functions=(lambda share: share.clip(min=0) ** 0.5, lambda root: root**2))
    axes.set_xlim(0, 100)
    axes.set_xticks(_SHARES, [f"{share}" for share in _SHARES])


def _panel(axes: Axes, results: Results, methods: Sequence[Method], across: Across) -> None:
    if _CONTROL in results.defaults:
        control = [results.defaults[name] for name in _ENDS if name in results.defaults]
        for sweep in results.sweeps[_CONTROL]:
            control += results.curve(_CONTROL, sweep)
        control.sort(key=lambda one: one.llm_share)
        _line(axes, control, across, "0.55", ".", ":", _CONTROL)
    for index, method in enumerate(methods):
        colour, marker = COLOURS[index % len(COLOURS)], _MARKERS[index % len(_MARKERS)]
        for sweep, line in zip(method.sweeps, _LINES, strict=False):
            label = method.policy if len(method.sweeps) == 1 else f"{method.policy} ({sweep})"
            _line(axes, results.curve(method.policy, sweep), across, colour, marker, line, label)
        # The point as it is served, filled.
        label = "" if method.sweeps else method.policy
        _line(axes, [results.defaults[method.policy]], across, colour, marker, "", label, face=colour)
    for name, marker in _ENDS.items():
        if name in results.defaults:
            _line(axes, [results.defaults[name]], across, "0.35", marker, "", f"{name} alone", face="0.35")


def _line(
    axes: Axes,
    points: Sequence[Figures],
    across: Across,
    colour: str,
    marker: str,
    line: str,
    label: str,
    face: str = "white",
) -> None:
    axes.plot(
        [across(one) for one in points],
        [100 * one.accuracy for one in points],
        color=colour,
        marker=marker,
        linestyle=line,
        linewidth=1.0,
        markersize=5.5,
        markerfacecolor=face,
        label=label or "_",
        clip_on=False,
    )

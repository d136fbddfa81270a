"""The pictures of a report, as SVG; none where matplotlib is not installed."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..svg_style import COLOURS, as_svg, svg_style
from .drift import Drift
from .rates import Rate
from .report import GroupReport, Shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SENT, _MISSED, _, _, _, _NEEDLESS, _ = COLOURS
_GREY = "0.75"


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_shares(parts: Sequence[Shares], what: str) -> str:
    """Share sent on, missed and false alarms of each part, with intervals; `what` the parts are."""

    def paint(axes: "Axes") -> None:
        series: tuple[tuple[str, str, Callable[[Shares], Rate]], ...] = (
            ("sent on", _SENT, lambda shares: shares.routed),
            ("missed, of what is kept", _MISSED, lambda shares: shares.missed),
            ("false alarms, of what is sent on", _NEEDLESS, lambda shares: shares.false_alarms),
        )
        for index, (label, colour, of) in enumerate(series):
            places, known = [], []
            for place, shares in enumerate(parts):
                if of(shares).share is not None:
                    places.append(place + 0.25 * (index - 1))
                    known.append(of(shares))
            heights = [100 * (one.share or 0.0) for one in known]
            below = [height - 100 * one.low for height, one in zip(heights, known, strict=True)]
            above = [100 * one.high - height for height, one in zip(heights, known, strict=True)]
            axes.bar(places, heights, 0.25, color=colour, label=label)
            axes.errorbar(places, heights, [below, above], fmt="none", ecolor="0.3", elinewidth=0.8)
        axes.set_xticks(range(len(parts)), [shares.name for shares in parts])
        axes.set_xlabel(what)
        axes.set_ylabel("%")
        axes.set_ylim(0, None)

    return _drawn(paint)


def draw_scores(drift: Drift) -> str:
    """Parts of the scores here in bins that held known parts at calibration."""

    def paint(axes: "Axes") -> None:
        places = range(len(drift.parts))
        axes.bar(places, [100 * part for part in drift.expected], 0.8, color=_GREY, label="at calibration")
        axes.bar(places, [100 * part for part in drift.parts], 0.4, color=_SENT, label="here")
        axes.set_xlabel("bins of scores, from low to high")
        axes.set_ylabel("% of scores")
        axes.set_xticks([])

    return _drawn(paint)


def pictures_of(group: GroupReport) -> list[tuple[str, str]]:
    """Title and SVG of all that a group has."""
    drawn = []
    if group.by_class:
        drawn.append(("By class of the small model's token", draw_shares(group.by_class, "class of the token")))
    drawn.append(("By position in the answer", draw_shares(group.by_position, "position in the answer")))
    if group.drift is not None:
        drawn.append(("Scores against those at calibration", draw_scores(group.drift)))
    return drawn


def _drawn(paint: "Callable[[Axes], None]") -> str:
    # Late: the library is an extra, and takes a second to import.
    from matplotlib.figure import Figure  # noqa: PLC0415

    with svg_style():
        figure = Figure(figsize=(9.0, 3.0), layout="constrained")
        paint(figure.subplots())
        figure.legend(loc="outside upper right", ncols=3, frameon=False)
        return as_svg(figure)

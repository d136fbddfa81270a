"""How our pictures look, and SVG that is the same for the same figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOW_TO_INSTALL = "pip install 'allroads[lifecycle]'"
# Okabe and Ito's colours, which differ for colour-blind readers and in grey, without their yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")

_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@contextmanager
def svg_style() -> Iterator[None]:
    """Figures that are made and written inside have it."""
    # Late: the library is an extra, and takes a second to import.
    import matplotlib as mpl  # noqa: PLC0415

    style: Any = {
        "svg.hashsalt": "allroads",  # ids of parts are drawn from it, else at random
        "svg.fonttype": "none",  # text stays text: small, searchable
        "text.parse_math": False,  # no name is a formula
        "font.size": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "0.9",
        "axes.axisbelow": True,
    }
    with mpl.rc_context(style):
        yield


def as_svg(figure: "Figure") -> str:
    """A figure as a document, without dates and without blanks at the ends of lines."""
    target = StringIO()
    figure.savefig(target, format="svg", metadata=_NO_METADATA)
    return "".join(f"{line.rstrip()}\n" for line in target.getvalue().splitlines())

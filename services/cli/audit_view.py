"""How audits and comparisons look on a terminal. Names come from files, and are made fit for one line."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..audit import wording
from ..audit.compare import Comparison
from ..audit.report import Audit, GroupReport
from .console import one_line

_MEASURE_COLUMNS = ("measure", "A", "B", "B - A, points", "Cohen's h", "p", "which means")


def show_audit(audit: Audit, console: Console, *, has_classes: bool) -> None:
    """Print a report."""
    console.print(wording.source(audit))
    for group in audit.groups:
        _show_group(group, console)
    console.print()
    console.print(wording.CAUTION)
    if not has_classes:
        console.print("--tokenizer DIR tells of classes of tokens", style="dim")


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print a comparison."""
    console.print(_table(_MEASURE_COLUMNS, map(wording.compared_row, comparison.measures)), soft_wrap=False)
    console.print(
        f"Differences below {100 * comparison.matters:g} points do not matter (--matters). Answers, not decisions, are "
        "taken to be independent; p is of all measures together (Holm), and below 0.05 is called a difference."
    )


def _show_group(group: GroupReport, console: Console) -> None:
    console.print()
    console.print(Text(one_line(group.key.label), style="bold"))
    console.print(wording.summary(group))
    for title, columns, rows in wording.tables(group):
        console.print(_table((title, *columns), rows), soft_wrap=False)
    if group.drift is not None:
        style = "bold red" if group.drift.verdict == "parted" else None
        console.print(Text(wording.drift_line(group.drift), style=style or ""))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table()
    for column in columns:
        table.add_column(Text(column))
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table

"""Predictions and simulations as a table for people."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from .console import stdout

if TYPE_CHECKING:
    from ..throughput.setting import Prediction, Setting
    from ..throughput.tally import Simulated


def show_simulations(setting: "Setting", pairs: "Sequence[tuple[Prediction, Simulated]]") -> None:
    """What was predicted above what was counted, then what only a simulation tells."""
    table = Table("requests", "waits for", "", "token/s", "each", "batch", "wait ms", "busy %")
    ways = Table("requests", "gap between tokens, ms", "wait of a hand-off, ms")
    for predicted, counted in pairs:
        number = str(predicted.num_requests)
        speed, *others = _cells(counted)
        off = 100 * (predicted.tokens_per_s / counted.tokens_per_s - 1.0)
        table.add_row(number, ", ".join(map(str, predicted.thresholds)), "predicted", *_cells(predicted))
        table.add_row("", "", "simulated", f"{speed} ± {counted.half_width:.1f}", *others)
        table.add_row("", "", "off", f"{off:+.1f} %", end_section=True)
        ways.add_row(number, _numbers(counted.gaps_s, 1e3), _numbers(counted.hand_off_waits_s, 1e3))
    stdout().print(table, soft_wrap=False)
    stdout().print(ways, soft_wrap=False)
    names = ", ".join(tier.name for tier in setting.larger)
    notes = (
        f"Batch and wait: of {names}. Busy: of {setting.home.name}, {names}. ± holds 95 % of such simulations.",
        "Gap and wait of a hand-off: half are no longer than the first number, 95 % and 99 % than the others.",
    )
    for note in notes:
        stdout().print(Text(note))


def _cells(found: "Prediction") -> tuple[str, ...]:
    return (
        f"{found.tokens_per_s:.1f}",
        f"{found.tokens_per_s_each:.1f}",
        _numbers(found.batches),
        _numbers(found.waits_s, 1e3),
        _numbers(found.busy, 100.0, digits=0),
    )


def _numbers(values: Iterable[float], factor: float = 1.0, *, digits: int = 1) -> str:
    return ", ".join(f"{factor * value:.{digits}f}" for value in values)

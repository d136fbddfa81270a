"""Plans as tables for people, one beside the other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from .console import stdout

if TYPE_CHECKING:
    from ..throughput.planning import Plan
    from ..throughput.setting import Setting

_SHORT_S = 1e-5


def show_plans(plans: Mapping[str, "Plan"], settings: Mapping[str, "Setting"]) -> None:
    """Throughput by requests at once, then capacity and what the traffic needs."""
    for name, found in plans.items():
        _show_points(found, settings[name], title=name if len(plans) > 1 else None)
    table = Table("", *(plans if len(plans) > 1 else ("",)), show_header=len(plans) > 1)
    columns = [_rows(found) for found in plans.values()]
    for label in columns[0] | columns[-1]:
        table.add_row(*map(Text, (label, *(column.get(label, "") for column in columns))))
    stdout().print(table, soft_wrap=False)


def _show_points(found: "Plan", setting: "Setting", title: str | None) -> None:
    tiers = [tier.name for tier in setting.larger]
    waits = ["waits for"] if len(tiers) == 1 else [f"{name} waits for" for name in tiers]
    table = Table("requests", *waits, "token/s", "each", "gain", "first token", title=title, title_justify="left")
    for point in found.points:
        cells = (
            str(point.num_requests),
            *map(str, point.thresholds),
            f"{point.tokens_per_s:.1f}",
            f"{point.tokens_per_s_each:.1f}",
            f"{round(100 * point.gain, 1) + 0.0:.1f} %",
            _seconds(point.first_token_s),
        )
        style = "bold" if point.num_requests == found.capacity.num_requests else ""
        table.add_row(*(Text(cell, style=style) for cell in cells))
    stdout().print(table, soft_wrap=False)


def _seconds(seconds: float) -> str:
    if seconds < _SHORT_S:
        return "0 ms"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _rows(found: "Plan") -> dict[str, str]:
    """Cells by label; what is not known has none."""
    capacity, load = found.capacity, found.load
    rows = {
        "requests at once (capacity)": str(capacity.num_requests),
        "launch thresholds there": ", ".join(map(str, capacity.thresholds)),
        "token/s of a replica there": f"{capacity.tokens_per_s:.1f}",
        "token/s of each request there": f"{capacity.tokens_per_s_each:.1f}",
    }
    if found.requests_per_s is not None:
        rows["requests/s that a replica can take"] = f"{found.requests_per_s:.3g}"
    if load is not None:
        rows |= {
            "replicas": str(load.num_replicas),
            "GPUs": str(load.num_gpus),
            "utilisation": f"{100 * load.utilisation:.0f} %",
            "requests that run in each": f"{load.num_running:.1f}",
            "time of an answer": _seconds(load.answer_s),
            "wait before it": _seconds(load.queue_wait_s),
            "first token, waiting included": _seconds(load.first_token_s),
        }
    return rows

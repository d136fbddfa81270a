"""`allroads roi`: a report in money."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from .console import stdout
from .refusals import as_wrong_command

if TYPE_CHECKING:
    from ..evaluation.roi import BreakEven, Roi, Scenarios


def roi(
    report: Annotated[
        Path, typer.Option(metavar="FILE", help="`report.json` that `allroads evaluate` wrote.", show_default=False)
    ],
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prices, YAML or JSON: of tokens, or of machines by the hour.")
    ] = None,
    gpu_cost_per_hour: Annotated[
        str | None,
        typer.Option(
            metavar="COST", help="slm=1.2,llm=8: machines of each model. One number: a machine that holds all."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON in place of tables.")] = False,
) -> None:
    """Reckon what answers cost with each model alone, with routing and with query routing, and where that breaks even.

    Formulas: docs/roi.md.
    """
    # Late, so that no other command pays for it.
    from ..evaluation.prices import gpu_prices, read_prices  # noqa: PLC0415
    from ..evaluation.report_file import read_report  # noqa: PLC0415
    from ..evaluation.roi import reckon  # noqa: PLC0415

    if (prices is None) == (gpu_cost_per_hour is None):
        raise typer.BadParameter("give either --prices or --gpu-cost-per-hour")
    with as_wrong_command():
        found = read_report(report)
        if prices is not None:
            known = read_prices(prices, found.tiers)
        else:
            known = gpu_prices(_parsed(gpu_cost_per_hour or ""), found.tiers)
        result = reckon(found, known)
    if as_json:
        stdout().print(json.dumps(asdict(result), indent=2, allow_nan=False))
    else:
        _show(result)


def _parsed(text: str) -> object:
    try:
        if "=" not in text:
            return float(text)
        return {name.strip(): float(value) for name, _, value in (part.partition("=") for part in text.split(","))}
    except ValueError:
        raise typer.BadParameter(f"--gpu-cost-per-hour {text!r} is neither a number nor NAME=NUMBER,...") from None


def _show(result: "Roi") -> None:
    unit = f" {result.currency}" if result.currency else ""
    table = Table("way", "right", "LLM tokens", f"per answer{unit}", "per million tokens", "per right answer", "saved")
    for way in result.ways:
        cells = (
            way.name,
            _percent(way.accuracy),
            _percent(way.llm_share),
            f"{way.per_answer:.4g}",
            f"{way.per_million_tokens:.4g}",
            "" if way.per_right_answer is None else f"{way.per_right_answer:.4g}",
            _percent(way.saving),
        )
        table.add_row(*map(Text, cells))
    stdout().print(table, soft_wrap=False)
    for break_even in result.break_even:
        _show_break_even(break_even)
    for scenarios in result.scenarios:
        _show_scenarios(scenarios)


def _show_break_even(found: "BreakEven") -> None:
    if found.money is None:
        stdout().print(f"{found.arm}: what the large model writes costs nothing at these prices")
    else:
        stdout().print(
            f"{found.arm}: costs less than the large model alone up to a share of {_percent(found.money)}; "
            f"it has {_percent(found.share)}"
        )
    bounds = ", ".join(f"{speed_up:g}x: {_percent(max(bound, 0.0))}" for speed_up, bound in found.time.items())
    stdout().print(f"{found.arm}: faster than a lossless speed-up of the large model below a share of: {bounds}")


def _show_scenarios(found: "Scenarios") -> None:
    columns = [f"{ratio:g}x" for ratio in found.ratios]
    title = f"{found.arm}: saved, by share of the large model and by its price over the small one's"
    table = Table("share", *columns, title=title, title_justify="left")
    for share, savings in zip(found.shares, found.savings, strict=True):
        table.add_row(*map(Text, (_percent(share), *map(_percent, savings))))
    stdout().print(table, soft_wrap=False)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"

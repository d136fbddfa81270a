"""The tables of `bench.methods`, on the console and in a document."""

from pathlib import Path
from typing import Any

from .method_results import Figures, Results
from .report import show

BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
_COLUMNS = (
    "policy",
    "setting",
    "right",
    "95 %",
    "LLM tokens",
    "LLM positions",
    "drafts kept",
    "token/s, 1",
    "over `llm`",
    "token/s, 8",
    "over `llm`",
)
_SWEEP_COLUMNS = ("policy", "setting", "right", "95 %", "LLM tokens", "LLM positions", "drafts kept", "over `llm`")
_WIDTH = 160

Rows = list[tuple[str, ...]]


def default_rows(results: Results) -> Rows:
    """A row for each method."""
    return [
        (
            f"`{method.policy}`",
            *_quality(results.defaults[method.policy], (*method.sweeps,)),
            *_speed(results.alone[method.policy]),
            *_speed(results.defaults[method.policy]),
        )
        for method in results.methods
    ]


def sweep_rows(results: Results) -> Rows:
    """A row for each point of each curve."""
    return [
        (f"`{policy}`", *_quality(figures, (parameter,)), f"{figures.over_llm:.2f}")
        for policy, sweeps in results.sweeps.items()
        for parameter in sweeps
        for figures in results.curve(policy, parameter)
    ]


def show_tables(results: Results) -> None:
    """Print both."""
    show("held-out problems, greedy", _COLUMNS, default_rows(results), width=_WIDTH)
    if rows := sweep_rows(results):
        show("trade-offs, 8 requests", _SWEEP_COLUMNS, rows, width=_WIDTH)


def write_tables(results: Results, document: Path) -> None:
    """Put the tables between the markers of a document.

    Raises:
        ValueError: it does not have both markers, each once and in order.
    """
    before, begin, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ValueError(f"{document} must have {BEGIN} and {END}, each once and in this order")
    document.write_text(f"{before}{BEGIN}\n{_measured(results)}\n{END}{after}", encoding="utf-8")


def _measured(results: Results) -> str:
    parts = [_conditions(results), _markdown(_COLUMNS, default_rows(results))]
    parts += [f"`{policy}` was not measured: {reason}." for policy, reason in results.skipped.items()]
    summary = "<summary>All points of the curves, 8 requests at once</summary>"
    sweeps = _markdown(_SWEEP_COLUMNS, sweep_rows(results))
    return "\n\n".join([*parts, f"<details>\n{summary}", sweeps, "</details>"])


def _conditions(results: Results) -> str:
    machine = results.environment
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    # All settings answer as many.
    (eight,) = {one.num_problems for one in results.defaults.values()}
    (alone,) = {one.num_problems for one in results.alone.values()}
    return (
        f"{machine['cores']} cores of {machine['cpu']}, no GPU, Python {machine['python']}, {versions}; one torch "
        f"thread a model. Greedy, {eight} held-out problems a setting, {alone} with one request at a time; rounds in "
        f"which the settings take turns: {results.rounds}."
    )


def _markdown(columns: tuple[str, ...], rows: Rows) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _quality(figures: Figures, parameters: tuple[str, ...]) -> tuple[str, ...]:
    drafts = figures.accepted_drafts
    return (
        ", ".join(f"{name} {_value(figures.parameters[name])}" for name in parameters),
        _percent(figures.accuracy),
        f"{100 * figures.accuracy_low:.0f}-{100 * figures.accuracy_high:.0f}",
        _shares(figures),
        _percent(figures.llm_positions),
        "" if drafts is None else _percent(drafts),
    )


def _speed(figures: Figures) -> tuple[str, str]:
    return f"{figures.tokens_per_s:.0f}", f"{figures.over_llm:.2f}"


def _shares(figures: Figures) -> str:
    """The share that larger models wrote, and whose it is where there are several."""
    larger = dict(list(figures.shares.items())[1:])
    parts = ", ".join(f"{name} {100 * share:.0f}" for name, share in larger.items())
    return _percent(figures.llm_share) + (f" ({parts})" if len(larger) > 1 else "")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _value(value: Any) -> str:
    return "/".join(_value(one) for one in value) if isinstance(value, list | tuple) else f"{value:.4g}"

"""What a comparison says: tables, and the same as one object for JSON."""

from collections.abc import Callable
from typing import Any

from ..report import show
from .bound import Work
from .comparison import LLM, LOOP, SLM, Key, Plan, Results, hand_off_ms, rows_of


def summary(plan: Plan, results: Results, work: Work, bytes_per_s: float) -> dict[str, Any]:
    """All figures, by share, system and number of requests."""
    tables: dict[str, Any] = {
        "tokens_per_s": _by_share(plan, results, results.tokens_per_s),
        "over_first": {},
        "share_of_bound": _by_share(plan, results, lambda key, n: _of_bound(results, work, bytes_per_s, key, n)),
    }
    for share in plan.shares:
        base = Key(plan.systems[0], share)
        tables["over_first"][share] = {
            key.system: {n: results.tokens_per_s(key, n) / results.tokens_per_s(base, n) for n in plan.concurrencies}
            for key in results.keys(share)
        }
    return tables | {
        "hand_off_ms": {
            share: {key.system: hand_off_ms(results, key) for key in results.keys(share) if key.share is not None}
            for share in plan.shares
        },
        "details": [
            {
                "system": key.system,
                "share": key.share,
                "requests": n,
                "llm_share": results.last(key, n).llm_share,
                "step_ms": results.last(key, n).step_ms,
                "counts": results.last(key, n).counts,
            }
            for key in rows_of(results, plan.shares)
            for n in plan.concurrencies
        ],
        "ways": results.ways,
        "seconds_to_ready": results.seconds_to_ready,
        "copy_gb_per_s": bytes_per_s / 1e9,
    }


def print_tables(plan: Plan, results: Results, figures: dict[str, Any]) -> None:
    """The figures of `summary` for people."""
    columns = [f"{n} requests" for n in plan.concurrencies]
    for share in plan.shares:
        for title, name in (
            ("token/s", "tokens_per_s"),
            (f"over {plan.systems[0]}", "over_first"),
            ("of what memory bandwidth allows", "share_of_bound"),
        ):
            shown = [(system, *map(_cell, by.values())) for system, by in figures[name][share].items()]
            show(f"{title}, the large model writes {share:.0%}", ("system", *columns), shown)
    costs = figures["hand_off_ms"]
    systems = list(dict.fromkeys(system for by in costs.values() for system in by))
    show(
        "ms that a hand-off costs beyond the large model's step, 1 request",
        ("system", *(f"{share:.0%}" for share in plan.shares)),
        [(system, *(_cell(costs[share].get(system)) for share in plan.shares)) for system in systems],
    )
    most = plan.concurrencies[-1]
    details = [_detail(results, key, most) for key in rows_of(results, plan.shares) if key.system != LOOP]
    show(f"steps and counts, {most} requests", ("system", "share", "slm ms", "llm ms", "counted"), details, width=200)
    for line in dict.fromkeys(line for lines in results.ways.values() for line in lines):
        print(f"{line}  [{', '.join(name for name, lines in results.ways.items() if line in lines)}]")


def _by_share(
    plan: Plan, results: Results, figure: Callable[[Key, int], float | None]
) -> dict[float, dict[str, dict[int, float | None]]]:
    return {
        share: {key.system: {n: figure(key, n) for n in plan.concurrencies} for key in results.keys(share)}
        for share in plan.shares
    }


def _of_bound(results: Results, work: Work, bytes_per_s: float, key: Key, concurrency: int) -> float | None:
    """None for speculative decoding, whose bound is another."""
    if key.share is None and key.system not in (LLM, SLM):
        return None
    # The loop serves one at a time by its nature, and is measured by what several could have.
    least_s = work.seconds_per_token(
        results.last(key, concurrency).llm_share, concurrency, bytes_per_s, slm=key.system != LLM
    )
    return results.tokens_per_s(key, concurrency) * least_s


def _detail(results: Results, key: Key, concurrency: int) -> tuple[str, ...]:
    cell = results.last(key, concurrency)
    steps = (_cell(cell.step_ms.get(tier)) for tier in ("slm", "llm"))
    counts = ", ".join(
        f"{name.removeprefix('allroads_').replace('_total', '')} {value:.0f}"
        for name, value in cell.counts.items()
        if value
    )
    return (key.system, f"{cell.llm_share:.1%}", *steps, counts)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"

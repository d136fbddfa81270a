"""An evaluation in plain words, for people who have never read a paper about it."""

from .report_file import ArmFigures, Comparison, Interval, QueryFigures, Report

_METHODS = {
    "confidence": "the small model answers first, and the answers that it is least sure of are written anew by the "
    "large one",
    "random": "requests are sent to the large model at random",
    "best": "chosen by one who knew every outcome beforehand, which nobody can",
}
_FEW = 100


def percent(share: float, digits: int = 1) -> str:
    """`12.3 %`."""
    return f"{100 * share:.{digits}f} %"


def percent_interval(interval: Interval) -> str:
    """`12.3 % (10.1 to 14.9)`."""
    return f"{percent(interval.value)} ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def number_interval(interval: Interval) -> str:
    """`12.3 (10.1 to 14.9)`."""
    return f"{interval.value:.4g} ({interval.low:.4g} to {interval.high:.4g})"


def summary(report: Report) -> list[str]:
    """What a manager should know, a paragraph for each routed arm and one of cautions."""
    arms = {arm.name: arm for arm in report.arms}
    return [
        *(_of_arm(report, arms[comparison.arm], comparison) for comparison in report.comparisons),
        *cautions(report),
    ]


def _of_arm(report: Report, arm: ArmFigures, comparison: Comparison) -> str:
    llm, slm = report.arm("llm"), report.arm("slm")
    parts = [
        f"With {arm.name}, {percent(arm.accuracy.value)} of {arm.num_problems} problems are answered right, against "
        f"{percent(llm.accuracy.value)} by the large model alone and {percent(slm.accuracy.value)} by the small one: "
        f"{percent(comparison.of_llm.value)} of the large model's accuracy.",
        f"The large model writes {percent(arm.llm_share.value)} of the tokens.",
        f"Counted by the parameters that wrote the tokens, an answer costs {_less(arm.published_cost, llm)}",
    ]
    if arm.full_cost is not None and llm.full_cost is not None:
        parts[-1] += (
            f"; with all that any model read or wrote for it, {_ratio(arm.full_cost.value, llm.full_cost.value)} of "
            "what it costs from the large model alone"
        )
    parts[-1] += "."
    if llm.tokens_per_s:
        parts.append(
            f"It wrote {arm.tokens_per_s:.0f} tokens per second where the large model alone wrote "
            f"{llm.tokens_per_s:.0f} ({arm.tokens_per_s / llm.tokens_per_s:.2f} times)."
        )
    if comparison.over_random is not None:
        parts.append(
            f"Against drawing at random which model writes, at the same share, it gains "
            f"{_points(comparison.over_random)}."
        )
    parts += [query_words(query) for query in comparison.queries if query.formula == "published"]
    return " ".join(parts)


def query_words(query: QueryFigures) -> str:
    """One comparison with query-level routing."""
    return (
        f"At the same cost with one model for each request ({_METHODS[query.method]}), "
        f"{percent(query.accuracy.value)} would be right: a difference of {_points(query.difference)}."
    )


def cautions(report: Report) -> list[str]:
    """What limits how far the figures can be trusted."""
    found = []
    count = report.arms[0].num_problems
    if count < _FEW:
        found.append(f"{count} problems are few: read the intervals, not the figures.")
    for arm in report.arms:
        if arm.num_degraded:
            found.append(f"{arm.name}: {arm.num_degraded} answers were finished by the small model alone.")
        if arm.num_unjudged:
            found.append(f"{arm.name}: the judge gave no verdict on {arm.num_unjudged} answers; they count as wrong.")
        if arm.num_too_long:
            found.append(f"{arm.name}: {arm.num_too_long} problems did not fit the window; they count as wrong.")
        if arm.num_cut > 0.05 * arm.num_problems:
            found.append(f"{arm.name}: {arm.num_cut} answers were cut at the limit on their length.")
    if report.arm("llm").accuracy.low <= report.arm("slm").accuracy.high:
        found.append(
            "On these problems the large model is not clearly better than the small one, so there is little for "
            "routing to gain."
        )
    return found


def _less(cost: Interval, llm: ArmFigures) -> str:
    return f"{_ratio(cost.value, llm.published_cost.value)} of what it costs from the large model alone"


def _ratio(cost: float, other: float) -> str:
    return percent(cost / other, 0) if other else "an unknown part"


def _points(difference: Interval) -> str:
    clear = "clearly not chance" if difference.low > 0 or difference.high < 0 else "which may be chance"
    return (
        f"{100 * difference.value:+.1f} percentage points (95 % interval {100 * difference.low:+.1f} to "
        f"{100 * difference.high:+.1f}, {clear})"
    )

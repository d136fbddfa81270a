"""How figures are said to people, on a terminal and on a page alike."""

from datetime import UTC, datetime

from .compare import Compared
from .cost import Cost
from .drift import Drift
from .rates import Rate
from .report import Audit, GroupReport, Shares

UNKNOWN = "not known"
_OVERALL = ("share", "95 %", "decisions", "which is")
_BREAKDOWN = ("decisions", "sent on, %", "missed, %", "false alarms, %", "caught, %")
_COST = ("routed", "large model alone", "saved")
_MEANINGS = {
    "sent on": "of all: the policy sends the position to a larger model",
    "same token": "of those where the large model's token is known whatever the policy said: it is the small model's",
    "same if on": "of the same: the answer has the large model's token if the policy is acted on",
    "missed": "of those among them that are left to the small model: the large one writes another token",
    "false alarms": "of those sent on, where the large model's token is known: it is the small model's",
    "caught": "of those where the models are known to differ, whatever the policy said: they are sent on",
}
_MEASURES = {"routed": "sent on", "same_if_on": "same if on", "missed": "missed", "false_alarms": "false alarms"}
"""Names of what `compare` compares."""
CAUTION = (
    "Another token of the large model is not always another meaning, so missed divergences are counted too high; "
    "a review tells how much. Intervals are of 95 %, and take answers, not decisions, to be independent."
)


def percent(share: float) -> str:
    """A share."""
    return f"{100 * share:.2f} %"


def rate(value: Rate) -> str:
    """A share with its interval: `8.10 % (7.42 to 8.83)`."""
    if value.share is None:
        return UNKNOWN
    if value.num_requests < 2:
        return f"{percent(value.share)} (one answer)"
    return f"{percent(value.share)} ({100 * value.low:.2f} to {100 * value.high:.2f})"


def summary(group: GroupReport) -> str:
    """A group in a sentence or two, for whoever reads no tables."""
    own = group.overall
    verb = "went" if group.key.mode == "on" else "would have gone"
    first = f"Of {own.decisions:,} decisions in {own.requests:,} answers, {rate(own.routed)} {verb} to a larger model."
    if own.missed.share is None:
        return (
            f"{first} What was missed is not known: the large model's token is known only where it was asked. An audit "
            "in which the large model writes (slm.mode: audit, slm.writer: llm) tells."
        )
    return (
        f"{first} Where the small model would have written alone, the large one writes another token in "
        f"{rate(own.missed)}; the answer has the large model's token at {rate(own.same_if_on)} of all positions."
    )


Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, which heads the first column, the other columns, and rows."""


def tables(group: GroupReport) -> list[Table]:
    """All tables of a group that have rows."""
    made: list[Table] = [
        ("all decisions", _OVERALL, _overall(group.overall)),
        ("class of token", _BREAKDOWN, list(map(_part, group.by_class))),
        ("position", _BREAKDOWN, list(map(_part, group.by_position))),
        ("cost", _COST, _costs(group)),
    ]
    return [table for table in made if table[2]]


def drift_line(drift: Drift) -> str:
    """Scores and share against those at calibration."""
    index = UNKNOWN if drift.index is None else f"{drift.index:.3f}"
    line = f"drift: {drift.verdict} (population stability index {index}, parted over 0.25; {drift.num_scores:,} scores)"
    if drift.calibrated_share is None:
        return f"{line}; no share was calibrated at this threshold"
    fits = "in" if drift.share_fits else "outside"
    return f"{line}; calibrated share {percent(drift.calibrated_share)}, {fits} the interval of the share here"


def source(audit: Audit) -> str:
    """What was read."""
    torn = f", {audit.num_torn_lines} lines cut short by a crash left out" if audit.num_torn_lines else ""
    return (
        f"{audit.num_decisions:,} decisions, {audit.num_ended_requests:,} requests ended, from {_time(audit.begins_s)} "
        f"to {_time(audit.ends_s)}, in {len(audit.files)} files{torn}"
    )


def compared_row(compared: Compared) -> tuple[str, ...]:
    """Measure, A, B, difference with interval, Cohen's h, adjusted p, and what it means."""
    one = compared.difference
    name = _MEASURES[compared.measure]
    sides = _compact(Rate.of(compared.a)), _compact(Rate.of(compared.b))
    if one is None:
        return name, *sides, UNKNOWN, "", "", f"{compared.verdict}: fewer than two answers tell"
    points = f"{100 * one.difference:+.2f} ({100 * one.low:+.2f} to {100 * one.high:+.2f})"
    p_value = "" if compared.p_adjusted is None else f"{compared.p_adjusted:.2g}"
    meaning: str = compared.verdict
    if compared.verdict == "differ":
        meaning = f"B is {'higher' if one.difference > 0 else 'lower'}"
    elif compared.verdict == "not enough data" and min(one.a.num_requests, one.b.num_requests) < one.needed_requests:
        meaning = f"{meaning}: about {one.needed_requests:,} answers a side"
    return name, *sides, points, f"{one.effect:+.3f}", p_value, meaning


def _overall(shares: Shares) -> list[tuple[str, ...]]:
    rates = (
        shares.routed, shares.agrees, shares.same_if_on, shares.missed, shares.false_alarms, shares.caught
    )  # fmt: skip
    return [
        (
            name,
            UNKNOWN if one.share is None else percent(one.share),
            "" if one.num_requests < 2 else f"{100 * one.low:.2f} to {100 * one.high:.2f}",
            f"{one.hits:,} of {one.trials:,}",
            meaning,
        )
        for (name, meaning), one in zip(_MEANINGS.items(), rates, strict=True)
    ]


def _part(shares: Shares) -> tuple[str, ...]:
    rates = shares.routed, shares.missed, shares.false_alarms, shares.caught
    return shares.name, f"{shares.decisions:,}", *map(_compact, rates)


def _compact(value: Rate) -> str:
    """Percent, with the interval behind it: `8.1 (7.4-8.8)`."""
    if value.share is None:
        return UNKNOWN
    if value.num_requests < 2:
        return f"{100 * value.share:.1f}"
    return f"{100 * value.share:.1f} ({100 * value.low:.1f}-{100 * value.high:.1f})"


def _costs(group: GroupReport) -> list[tuple[str, ...]]:
    costs = group.costs
    named = (
        ("billions of parameters a token, published formula", costs.published),
        ("billions of parameters a token, full formula", costs.full),
        ("money for a million tokens", costs.money),
    )
    return [(name, *_cost(cost)) for name, cost in named if cost is not None]


def _cost(cost: Cost) -> tuple[str, str, str]:
    return f"{cost.routed:.4g}", f"{cost.llm_alone:.4g}", percent(cost.saved)


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return UNKNOWN

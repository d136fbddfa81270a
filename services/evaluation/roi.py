"""What routing costs and saves in money, from a report and prices (formulas: docs/roi.md)."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidArgument
from .prices import Prices
from .report_file import ArmFigures, Comparison, Report

_MILLION = 1e6
_SECONDS_PER_HOUR = 3600.0
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
RATIOS = (3.0, 5.0, 10.0, 20.0, 50.0)
SPEED_UPS = (1.0, 1.25, 1.5, 1.71, 2.0, 2.5, 3.0)
"""Of lossless methods; 1.71 is published for Qwen3-32B with EAGLE-3 at one request."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to answer, in money."""

    name: str
    accuracy: float
    llm_share: float | None
    """Of tokens; None for query routing, whose answers are whole ones."""
    per_answer: float
    per_million_tokens: float
    per_right_answer: float | None
    """None where no answer is right."""
    saving: float | None
    """Over the large model alone, per answer: 0.6 costs 40 % of it. None where that costs nothing."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Shares of the large model up to which an arm is worth it."""

    arm: str
    share: float
    """That it has."""
    money: float | None
    """At which an answer costs what it costs from the large model alone; None where no share changes the cost."""
    time: dict[float, float]
    """By a lossless speed-up of the large model alone: below it routing is faster still; 0 or less means never."""


@dataclass(frozen=True, slots=True)
class Scenarios:
    """Savings over the large model alone, if each model is paid for its own work."""

    arm: str
    shares: tuple[float, ...]
    ratios: tuple[float, ...]
    """Cost of a token of the large model over that of one of the small model."""
    savings: tuple[tuple[float, ...], ...]
    """By share, then by ratio."""


@dataclass(frozen=True, slots=True)
class Roi:
    """All of it."""

    currency: str
    ways: list[Way]
    break_even: list[BreakEven]
    scenarios: list[Scenarios]


def reckon(report: Report, prices: Prices) -> Roi:
    """Reckon a report in money.

    Raises:
        InvalidArgument: the report has no speeds, which prices by the hour need.
    """
    slm, llm = report.arm("slm"), report.arm("llm")
    for arm in (slm, llm, *report.arms_of("routed")):
        if prices.tokens is None and arm.tokens_per_s <= 0:
            raise InvalidArgument(f"the report has no speed of {arm.name}; prices by the hour need it", field="report")
    llm_cost = answer_cost(llm, prices, report.tiers)
    ways = [_way(slm, prices, report.tiers, llm_cost), _way(llm, prices, report.tiers, llm_cost)]
    break_even, scenarios = [], []
    comparisons = {comparison.arm: comparison for comparison in report.comparisons}
    for arm in report.arms_of("routed"):
        ways.append(_way(arm, prices, report.tiers, llm_cost))
        if (query := _query_way(comparisons[arm.name], report, prices, llm_cost)) is not None:
            ways.append(query)
        break_even.append(
            BreakEven(
                arm.name,
                arm.llm_share.value,
                break_even_share(arm, llm, prices, report.tiers),
                {speed_up: lossless_bound(speed_up, slm, llm) for speed_up in SPEED_UPS},
            )
        )
        scenarios.append(_scenarios(arm, report, prices))
    return Roi(prices.currency, ways, break_even, scenarios)


def answer_cost(arm: ArmFigures, prices: Prices, tiers: Sequence[str]) -> float:
    """Of an answer of an arm, all that was computed for it included."""
    if prices.tokens is None:
        held = _held(arm, tiers)
        return prices.hourly(held) * arm.length.value / arm.tokens_per_s / _SECONDS_PER_HOUR
    cost = 0.0
    for index, tier in enumerate(tiers):
        price = prices.tokens[tier]
        made = _made(arm, tier, index)
        cost += made * price.output_per_million + _read(arm, index, made) * price.input_per_million
    return cost / _MILLION


def break_even_share(arm: ArmFigures, llm: ArmFigures, prices: Prices, tiers: Sequence[str]) -> float | None:
    """The share at which an answer costs what it costs from the large model alone, from 0 to 1.

    The arm's cost is taken as a fixed part, as measured, and one that grows with the share. None where the share
    costs nothing.
    """
    length, share = arm.length.value, arm.llm_share.value
    if prices.tokens is None:
        growth = prices.hourly(_held(arm, tiers)) * length / llm.tokens_per_s / _SECONDS_PER_HOUR
    else:
        growth = length * prices.tokens[tiers[-1]].output_per_million / _MILLION
    if growth <= 0:
        return None
    fixed = answer_cost(arm, prices, tiers) - share * growth
    return min(max((answer_cost(llm, prices, tiers) - fixed) / growth, 0.0), 1.0)


def lossless_bound(speed_up: float, slm: ArmFigures, llm: ArmFigures) -> float:
    """Break-even against a lossless speed-up S of the large model: 1/S - L0/L1, L being the time of a token."""
    return 1 / speed_up - llm.tokens_per_s / slm.tokens_per_s if slm.tokens_per_s > 0 else float("-inf")


def saving_at(
    share: float, ratio: float, *, length_ratio: float = 1.0, routed_reading: float = 0.0, llm_reading: float = 0.0
) -> float:
    """Saved of the large model's cost where each model is paid for its own work.

    Args:
        share: of tokens that the large model writes; the small one proposes at every place.
        ratio: cost of a token of the large model over that of one of the small model.
        length_ratio: length of routed answers over those of the large model.
        routed_reading: what the large model reads for a token of a routed answer, in tokens that it could write.
        llm_reading: the same where it writes alone.
    """
    return 1 - length_ratio * (1 / ratio + share + routed_reading) / (1 + llm_reading)


def _way(arm: ArmFigures, prices: Prices, tiers: Sequence[str], llm_cost: float) -> Way:
    cost = answer_cost(arm, prices, tiers)
    return _in_money(arm.name, arm.accuracy.value, arm.llm_share.value, cost, arm.length.value, llm_cost)


def _in_money(name: str, accuracy: float, llm_share: float | None, cost: float, length: float, llm_cost: float) -> Way:
    return Way(
        name=name,
        accuracy=accuracy,
        llm_share=llm_share,
        per_answer=cost,
        per_million_tokens=cost / length * _MILLION if length else 0.0,
        per_right_answer=cost / accuracy if accuracy else None,
        saving=1 - cost / llm_cost if llm_cost else None,
    )


def _query_way(comparison: Comparison, report: Report, prices: Prices, llm_cost: float) -> Way | None:
    """Query routing by confidence, with as many requests for the large model as the arm's published cost allows."""
    for query in comparison.queries:
        if query.method == "confidence" and query.formula == "published":
            slm, llm = report.arm("slm"), report.arm("llm")
            # Models that wait for each other are not paid for: machines are sized to fit. That favours this way.
            cost = answer_cost(slm, prices, report.tiers) + query.request_share * llm_cost
            share = query.request_share
            length = (1 - share) * slm.length.value + share * llm.length.value
            return _in_money(f"query routing like {comparison.arm}", query.accuracy.value, None, cost, length, llm_cost)
    return None


def _scenarios(arm: ArmFigures, report: Report, prices: Prices) -> Scenarios:
    llm, last = report.arm("llm"), len(report.tiers) - 1
    shares = tuple(sorted({*SHARES, round(arm.llm_share.value, 4)}))
    reading = 0.0
    if prices.tokens is not None and (price := prices.tokens[report.tiers[-1]]).output_per_million > 0:
        reading = price.input_per_million / price.output_per_million

    def read(of: ArmFigures) -> float:
        made = _made(of, report.tiers[-1], last)
        return reading * _read(of, last, made) / of.length.value if of.length.value else 0.0

    lengths = arm.length.value / llm.length.value if llm.length.value else 1.0
    savings = tuple(
        tuple(
            saving_at(share, ratio, length_ratio=lengths, routed_reading=read(arm), llm_reading=read(llm))
            for ratio in RATIOS
        )
        for share in shares
    )
    return Scenarios(arm.name, shares, RATIOS, savings)


def _held(arm: ArmFigures, tiers: Sequence[str]) -> list[str]:
    """Tiers that must be there for an arm: the one that writes alone, or all."""
    return [arm.name] if arm.role in ("slm", "llm") and arm.name in tiers else list(tiers)


def _made(arm: ArmFigures, tier: str, index: int) -> float:
    """Tokens that a tier made one by one for an answer: what it wrote, and of the small model what was turned down."""
    return arm.shares[tier] * arm.length.value + (arm.rejected or 0.0 if index == 0 else 0.0)


def _read(arm: ArmFigures, index: int, made: float) -> float:
    """Positions that a tier computed otherwise: the prompt, and what others wrote."""
    if arm.computed is None:
        return arm.prompt_length if made > 0 else 0.0
    return max(0.0, arm.computed[index] - made)

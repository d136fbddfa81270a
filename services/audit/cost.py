"""What the decisions of a log cost if each were acted on, next to the large model alone, by `evaluation.cost`."""

from dataclasses import dataclass
from typing import Self

from ..errors import InvalidArgument
from ..evaluation.cost import ParameterCounts, Work, full_cost, published_cost
from .tally import PassSums


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a million tokens that a model writes, in any one currency."""

    slm: float
    llm: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a token of the answer, on average."""

    routed: float
    llm_alone: float
    saved: float
    """Part of the large model's cost; below 0 where routing costs more."""

    @classmethod
    def of(cls, routed: float, llm_alone: float) -> Self:
        """Compare the two."""
        return cls(routed, llm_alone, 1 - routed / llm_alone)


@dataclass(frozen=True, slots=True)
class Costs:
    """By each formula, as far as it can be told."""

    published: Cost | None
    """In billions of activated parameters, those of the model that writes the token."""
    full: Cost | None
    """The same, but of every position that any model or the router works on; of requests whose end is in the log."""
    money: Cost | None
    """Of a million tokens."""


def costs_of(
    num_decisions: int, num_routed: int, passes: PassSums, sizes: ParameterCounts | None, prices: Prices | None
) -> Costs:
    """What a group of decisions would cost.

    Args:
        num_decisions: a token each.
        num_routed: those that the large model would write.
        passes: of its requests.
        sizes: of the small and the large model, and of the router, if they are known.
        prices: of the models' tokens, if they are known.
    """
    kept = num_decisions - num_routed
    published = full = money = None
    if sizes is not None:
        published = Cost.of(
            published_cost(Work((kept, num_routed), ()), sizes) / num_decisions,
            published_cost(Work((0, num_decisions), ()), sizes) / num_decisions,
        )
        if passes.decisions and passes.large_alone:
            full = Cost.of(
                full_cost(Work((), (passes.small, passes.large), passes.scored), sizes) / passes.decisions,
                full_cost(Work((), (0, passes.large_alone)), sizes) / passes.decisions,
            )
    if prices is not None:
        money = Cost.of((kept * prices.slm + num_routed * prices.llm) / num_decisions, prices.llm)
    return Costs(published, full, money)


def parse_prices(text: str) -> Prices:
    """Read `SLM,LLM`.

    Raises:
        InvalidArgument: it is not two prices, of which the second is above 0.
    """
    try:
        slm, llm = (float(part) for part in text.split(","))
    except ValueError:
        slm = llm = -1.0
    if not (0 <= slm < 1e9 and 0 < llm < 1e9):
        raise InvalidArgument(
            f"--prices must be two prices of a million tokens with a comma between, the small model's first, such as "
            f"0.05,0.60, and the large model's above 0; not {text!r}",
            field="prices",
        )
    return Prices(slm, llm)

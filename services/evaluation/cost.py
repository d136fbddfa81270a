"""What answers took, by the formulas of R2R (arXiv 2505.21600, section 4.1): the published one and the full one.

Both are sums over token positions of the parameters that computed them, in billions. The published formula counts
each token of an answer once, with the parameters of the model that wrote it: output tokens times average activated
parameters. It leaves out prompts, proposals that were dropped, what a larger model read to catch up, and the router.
The full formula counts every position that any model computed and every proposal that the router scored. It weighs
a position that is read in one wide pass like one that took a pass of its own, so it bounds the work from above; the
time that a user waits lies between the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_BILLION = 1e9


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters that compute one token position; of a mixture of experts, those that are active."""

    tiers: tuple[int, ...]
    """Of each model, the small one first."""
    router: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """Of one answer, or sums over several."""

    tokens: tuple[int, ...]
    """Committed tokens by the tier that wrote them."""
    computed: tuple[int, ...]
    """Token positions that each tier computed: prompts, catch-up and dropped proposals included."""
    num_scored: int = 0
    """Proposals that the router scored."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer."""
        return sum(self.tokens)


def published_cost(work: Work, parameters: ParameterCounts) -> float:
    """Output tokens times average activated parameters, in billions."""
    return _weighted(work.tokens, parameters.tiers) / _BILLION


def full_cost(work: Work, parameters: ParameterCounts) -> float:
    """Positions computed times parameters, router included, in billions."""
    return (_weighted(work.computed, parameters.tiers) + work.num_scored * parameters.router) / _BILLION


def activated_parameters(work: Work, parameters: ParameterCounts) -> float:
    """Average parameters, in billions, of the models that wrote the tokens; 0 where there are none."""
    return published_cost(work, parameters) / work.num_tokens if work.num_tokens else 0.0


def _weighted(counts: Sequence[int], parameters: Sequence[int]) -> float:
    return float(sum(count * each for count, each in zip(counts, parameters, strict=True)))

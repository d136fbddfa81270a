"""The features that policies ask for, read off a step's logits, and the batches that policies see."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..engine.features import entropy, max_probability, top_logits
from .policy import NUM_TOP_LOGITS, Feature, Policy, Proposals, RequestView


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of one proposal; only what its policy asked for counts."""

    entropy: float = 0.0
    max_probability: float = 0.0
    top_logits: tuple[float, ...] = ()


_NOTHING = Reading()


def read_features(logits: Tensor, policies: Sequence[Policy]) -> list[Reading]:
    """A reading of each row, with every feature that any of the policies asks for.

    Args:
        logits: float [n, vocabulary], raw, from which each proposal was drawn.
        policies: n policies, that of each row.
    """
    wanted = frozenset[Feature]().union(*(policy.features for policy in set(policies)))
    if not wanted:
        return [_NOTHING] * len(policies)
    rows = range(len(policies))
    entropies = entropy(logits).tolist() if Feature.ENTROPY in wanted else [0.0 for _ in rows]
    highest = max_probability(logits).tolist() if Feature.MAX_PROBABILITY in wanted else [0.0 for _ in rows]
    count = min(NUM_TOP_LOGITS, logits.shape[-1])
    top = top_logits(logits, count).tolist() if Feature.TOP_LOGITS in wanted else [() for _ in rows]
    return [Reading(entropies[row], highest[row], tuple(top[row])) for row in rows]


def proposals_of(
    policy: Policy,
    tier: int,
    requests: list[RequestView],
    token_ids: list[int],
    readings: Iterable[Reading],
    scores: list[float],
) -> Proposals:
    """The batch that a policy sees, with just what it asks for."""
    read = list(readings)
    return Proposals(
        requests,
        token_ids,
        tier=tier,
        entropies=[r.entropy for r in read] if Feature.ENTROPY in policy.features else [],
        max_probabilities=[r.max_probability for r in read] if Feature.MAX_PROBABILITY in policy.features else [],
        top_logits=[list(r.top_logits) for r in read] if Feature.TOP_LOGITS in policy.features else [],
        scores=scores,
    )

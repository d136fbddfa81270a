"""How labels are spread: kinds, entropy and rarity of tokens, next to what R2R published (arXiv 2505.21600)."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ..router.manifest import Part, Share
from ..training.dataset import Kind
from .shards import NO_LABEL, Shard

PUBLISHED_SHARES = {Kind.IDENTICAL: 0.89, Kind.NEUTRAL: 0.06, Kind.DIVERGENT: 0.05}
"""Of 7.6 million tokens (section 3.2)."""
PUBLISHED_ENTROPY_RATIO = 3.8
NUM_QUANTILES = 5


class FrequencyQuantile(Part):
    """Tokens that are about as frequent as each other. A token is in one quantile only, wherever it stands."""

    num_tokens: int
    num_distinct: int
    least: int
    """How often the rarest of them occurs in the answers."""
    most: int
    divergent_share: Share


class Statistics(Part):
    """Of all rows, those without a label included where they are counted."""

    num_tokens: int
    num_identical: int
    num_neutral: int
    num_divergent: int
    num_unlabelled: int
    """Differing tokens of which the judge said nothing; they stay out of training."""
    divergent_entropy: float | None
    """Mean, nats, of the small model's distribution where it diverges; None where it never does."""
    other_entropy: float | None
    entropy_ratio: float | None
    """Of these two."""
    by_frequency: tuple[FrequencyQuantile, ...]
    """Labelled tokens by how often the large model wrote them, rare ones first, about a fifth in each."""

    def share(self, kind: Kind) -> float:
        """Of a kind among labelled tokens; 0 where there are none."""
        counts = {
            Kind.IDENTICAL: self.num_identical, Kind.NEUTRAL: self.num_neutral, Kind.DIVERGENT: self.num_divergent
        }  # fmt: skip
        return counts[kind] / max(1, sum(counts.values()))


def measure(shards: Iterable[Shard]) -> Statistics:
    """Read the statistics off the rows, holding one shard at a time."""
    # Copies: a column would hold on to the whole shard.
    parts = [[np.array(shard.column(name)) for name in ("kind", "entropy", "token")] for shard in shards]
    kinds, entropies, tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
    labelled, divergent = kinds != NO_LABEL, kinds == Kind.DIVERGENT
    at, others = _mean(entropies[divergent]), _mean(entropies[labelled & ~divergent])
    return Statistics(
        num_tokens=len(kinds),
        num_identical=int((kinds == Kind.IDENTICAL).sum()),
        num_neutral=int((kinds == Kind.NEUTRAL).sum()),
        num_divergent=int(divergent.sum()),
        num_unlabelled=int((~labelled).sum()),
        divergent_entropy=at,
        other_entropy=others,
        entropy_ratio=at / others if at is not None and others else None,
        by_frequency=_by_frequency(tokens[labelled], divergent[labelled]),
    )


def _mean(values: npt.NDArray[np.float32]) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None


def _by_frequency(tokens: npt.NDArray[np.int32], divergent: npt.NDArray[np.bool_]) -> tuple[FrequencyQuantile, ...]:
    distinct, index, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    order = np.argsort(counts, kind="stable")
    # A token belongs where the middle of its occurrences falls when all are laid out, rare tokens first.
    middles = counts[order].cumsum() - counts[order] / 2
    quantiles = np.empty(len(distinct), np.int64)
    quantiles[order] = (NUM_QUANTILES * middles / max(1, len(tokens))).astype(np.int64)
    described = []
    for quantile in range(NUM_QUANTILES):
        own = quantiles == quantile
        if own.any():
            rows = own[index]
            described.append(
                FrequencyQuantile(
                    num_tokens=int(rows.sum()),
                    num_distinct=int(own.sum()),
                    least=int(counts[own].min()),
                    most=int(counts[own].max()),
                    divergent_share=float(divergent[rows].mean()),
                )
            )
    return tuple(described)

"""How unsure a model is, read off its ten best logits (LogU, arXiv 2502.00290), as R2R's public code uses it.

The logits count as evidence: as the parameters of a Dirichlet distribution over their tokens.
"""

import math
from collections.abc import Sequence

import torch

from .threshold_rule import within

MAX_ALEATORIC = 2.5
"""Above log 10, which is the most that ten tokens can give."""


def aleatoric(top_logits: Sequence[Sequence[float]]) -> list[float]:
    """Expected entropy of each row's Dirichlet distribution, in nats: -sum x/S (psi(x + 1) - psi(S + 1)).

    It lies between 0 and log K for K positive logits. Negative ones are no evidence, and the formula gives
    anything; what lies beyond is taken as the end it lies beyond, and what is infinite as NaN.

    Args:
        top_logits: n rows of K raw logits.
    """
    if not top_logits:
        return []
    evidence = torch.tensor([list(row) for row in top_logits], dtype=torch.float64)
    total = evidence.sum(dim=-1, keepdim=True)
    terms = evidence / total * (torch.digamma(evidence + 1) - torch.digamma(total + 1))
    most = math.log(max(evidence.shape[-1], 2))
    values: list[float] = (-terms.sum(dim=-1)).tolist()
    return [within(value, 0.0, most) if math.isfinite(value) else math.nan for value in values]


def epistemic(top_logits: Sequence[float]) -> float:
    """K / (S + K) for K raw logits with the sum S; 1 where there is no evidence, or less than none."""
    total = sum(top_logits)
    return len(top_logits) / (total + len(top_logits)) if total > 0 else 1.0

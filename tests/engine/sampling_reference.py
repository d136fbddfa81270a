"""Sampling by its definition, one row at a time, in plain Python; and the rows to sample."""

import math
from dataclasses import dataclass, field

from allroads.engine.matcher import Matcher
from allroads.engine.sampling import SamplingParams, uniform

NEVER = float("-inf")
_EDGE = 1e-5
"""Probabilities closer than this to a limit may fall on either side of it in float32."""


@dataclass
class PlainRow:
    """A sequence reduced to what sampling reads."""

    sampling: SamplingParams
    prompt: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    skipped: int = 0
    """Positions that the answer is taken to have besides its tokens."""

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def position(self) -> int:
        return len(self.answer) + self.skipped

    @property
    def matcher(self) -> Matcher | None:
        return None


def adjusted(logits: list[float], row: PlainRow) -> list[float]:
    """What is left of the logits after penalties, bias and `min_tokens`."""
    params, bias = row.sampling, dict(row.sampling.logit_bias)
    wanted = []
    for token_id, raw in enumerate(logits):
        value = raw
        if token_id in row.prompt or token_id in row.answer:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        count = row.answer.count(token_id)
        value -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
        wanted.append(value + bias.get(token_id, 0.0))
    if row.position < params.min_tokens:
        masked = [NEVER if token_id in params.stop_token_ids else value for token_id, value in enumerate(wanted)]
        if max(masked) > NEVER:
            return masked
    return wanted


def possible_tokens(logits: list[float], row: PlainRow) -> set[int]:
    """The token that must be drawn; more than one where float32 may not tell which side of a limit is meant."""
    params, wanted = row.sampling, adjusted(logits, row)
    if params.is_greedy:
        return {token_id for token_id, value in enumerate(wanted) if value > max(wanted) - _EDGE}
    weights = [math.exp((value - max(wanted)) / params.temperature) for value in wanted]
    order = sorted(range(len(wanted)), key=lambda token_id: -wanted[token_id])
    total, before = sum(weights), 0.0
    kept, is_unsure = [], False
    for rank, token_id in enumerate(order):
        limits = (before / total - params.top_p, params.min_p - weights[token_id])
        is_unsure |= rank > 0 and any(abs(limit) < _EDGE for limit in limits)
        if rank == 0 or ((rank < params.top_k or not params.top_k) and limits[0] < 0 and limits[1] <= 0):
            kept.append(token_id)
        before += weights[token_id]
    if is_unsure:
        return set(range(len(logits)))
    point = uniform(params.seed, row.position) * sum(weights[token_id] for token_id in kept)
    found, passed = set(), 0.0
    for token_id in kept:
        if passed - _EDGE <= point <= passed + weights[token_id] + _EDGE:
            found.add(token_id)
        passed += weights[token_id]
    return found

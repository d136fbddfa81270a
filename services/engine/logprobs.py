"""Log-probabilities of written tokens and of the likeliest ones, for those who ask."""

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cuda.upload import upload
from .sampling_params import Row

NO_PROBABILITY = -9999.0
"""What stands for the logarithm of 0, which JSON cannot carry, as in OpenAI's API."""
_LOWEST_INT32 = -(2**31)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities at one position; always finite."""

    logprob: float
    """Of the token written."""
    top_token_ids: tuple[int, ...]
    """The likeliest, likeliest first, and of equals the lowest id first."""
    top_logprobs: tuple[float, ...]
    """Parallel to `top_token_ids`."""


def token_logprobs(logits: Tensor, rows: SequenceOf[Row], token_ids: SequenceOf[int]) -> list[TokenLogprobs | None]:
    """Log-softmax in float32 of the raw logits, for each row that has `num_logprobs`, else None.

    Tokens without any probability, such as padding, are never among the likeliest.

    Args:
        logits: float [n, vocabulary], raw; rows of padding already -inf.
        rows: n rows.
        token_ids: n tokens written, one for each row.
    """
    found: list[TokenLogprobs | None] = [None] * len(rows)
    asking = [index for index, row in enumerate(rows) if row.sampling.num_logprobs is not None]
    if asking:
        written = upload([token_ids[index] for index in asking], logits.device)
        likely = likely_tokens(logits[asking], [rows[index] for index in asking], written)
        for index, entry in zip(asking, likely.entries(), strict=True):
            found[index] = entry
    return found


@dataclass(frozen=True, slots=True)
class LikelyTokens:
    """What is told of n positions, where it was worked out."""

    counts: list[int]
    """How many of the likeliest each wants."""
    token_ids: Tensor
    """int64 [n, largest count]: the likeliest."""
    logprobs: Tensor
    """float [n, 1 + largest count]: of the token written, then of the likeliest."""

    def entries(self) -> list[TokenLogprobs]:
        """One for each position. Waits for the device."""
        return [
            _entry(logprob, [pair for pair in zip(ids[:count], values, strict=False) if math.isfinite(pair[1])])
            for count, ids, (logprob, *values) in zip(
                self.counts, self.token_ids.tolist(), self.logprobs.tolist(), strict=True
            )
        ]


def likely_tokens(logits: Tensor, rows: SequenceOf[Row], written: Tensor) -> LikelyTokens:
    """Work out what `token_logprobs` tells, without waiting for the device.

    Args:
        logits: float [n, vocabulary], raw; rows of padding already -inf.
        rows: n rows, all of which ask.
        written: int64 [n].
    """
    raw = logits.float()
    counts = [row.sampling.num_logprobs or 0 for row in rows]
    top_ids = _likeliest(raw, min(max(counts), raw.shape[-1]))
    logprobs = raw.log_softmax(dim=-1).gather(1, torch.cat([written.unsqueeze(1), top_ids], dim=1))
    return LikelyTokens(counts, top_ids, logprobs)


def _entry(logprob: float, top: list[tuple[int, float]]) -> TokenLogprobs:
    return TokenLogprobs(
        logprob if math.isfinite(logprob) else NO_PROBABILITY,
        tuple(token_id for token_id, _ in top),
        tuple(value for _, value in top),
    )


def _likeliest(logits: Tensor, count: int) -> Tensor:
    """Ids of the largest logits, int64 [n, count], of equals the lowest first, as `argmax` has it.

    `topk` leaves the order of equals open, which are common where a model works in bfloat16. So each logit
    gets a key of its own: floats compare as their bits do, taken as sign and magnitude (IEEE 754, 5.10).
    """
    num_tokens = logits.shape[-1]
    bits = logits.view(torch.int32)
    ranks = torch.where(bits < 0, _LOWEST_INT32 - bits, bits).long()
    keys = ranks * num_tokens - torch.arange(num_tokens, device=logits.device)
    return keys.topk(count, dim=-1).indices

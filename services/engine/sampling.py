"""From logits to token ids.

A draw depends on (seed, position) alone: neither on the batch nor on which model draws. So a request's
tokens do not change with its neighbours, and a schedule of draws can be known ahead.
"""

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InvalidArgument

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are drawn, and what ends it."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means all."""
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    """A committed token of these ends the answer."""

    def __post_init__(self) -> None:
        """Refuse values out of range, naming the field."""
        _check("temperature", self.temperature, 0.0, 100.0)
        _check("top_p", self.top_p, 1e-6, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        if self.top_k < 0:
            raise InvalidArgument("top_k must be 0 (all) or more", field="top_k")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < 1e-5


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) fixed by its two arguments (SplitMix64, Steele et al. 2014, on their mix)."""
    state = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x8CB92BA72F3D8DD7) & _MASK
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        state = ((state ^ (state >> 30)) * multiplier) & _MASK
    return ((state ^ (state >> 31)) >> 11) * 2.0**-53


def sample(logits: Tensor, params: SequenceOf[SamplingParams], positions: SequenceOf[int]) -> Tensor:
    """One token id for each row.

    Args:
        logits: float [n, vocabulary], raw; rows of padding already -inf.
        params: n sampling parameters.
        positions: n places in the answer.

    Returns:
        int64 [n].
    """
    token_ids = logits.argmax(dim=-1)
    drawn = [row for row, param in enumerate(params) if not param.is_greedy]
    if drawn:
        rows = torch.tensor(drawn)
        token_ids[rows] = _draw(logits[rows].float(), [params[r] for r in drawn], [positions[r] for r in drawn])
    return token_ids


def _draw(logits: Tensor, params: list[SamplingParams], positions: list[int]) -> Tensor:
    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device).unsqueeze(1)

    temperature = column([p.temperature for p in params])
    scaled, order = (logits / temperature).sort(dim=-1, descending=True, stable=True)
    probabilities = scaled.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    rank = torch.arange(logits.shape[-1], device=logits.device)
    top_k = torch.tensor([[p.top_k or logits.shape[-1]] for p in params], device=logits.device)
    top_p = column([p.top_p for p in params])
    min_p = column([p.min_p for p in params])
    kept = (rank < top_k) & (before < top_p) & (probabilities >= min_p * probabilities[:, :1])
    # The likeliest token always stands, so a row is never empty.
    kept[:, 0] = True
    cumulative = (probabilities * kept).cumsum(dim=-1)
    point = column([uniform(p.seed, position) for p, position in zip(params, positions, strict=True)])
    index = torch.searchsorted(cumulative, point * cumulative[:, -1:], right=True)
    last_kept = (kept * (rank + 1)).argmax(dim=-1, keepdim=True)
    return order.gather(1, torch.minimum(index, last_kept)).squeeze(1)


def _check(field: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidArgument(f"{field} must be a number from {low:g} to {high:g}, not {value}", field=field)

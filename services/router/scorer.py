"""What the router service asks of a scorer, whatever it computes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..cuda.launch_counts import LaunchCounts
from ..errors import InvalidArgument
from .manifest import DataOrigin, MadeFor, UnnamedModel


@dataclass(frozen=True, slots=True)
class ScorerFacts:
    """What a scorer is called, reads, and was made for."""

    name: str
    slm: MadeFor
    llm: MadeFor | UnnamedModel
    weights_sha256: str
    features: tuple[str, ...]
    hidden_size: int
    num_top_logits: int
    """How many of the largest logits it reads; perhaps none."""
    threshold: float
    """Its own, for requests that name none."""
    num_parameters: int
    score_quantiles: tuple[float, ...]
    """Of the scores that the threshold was set on, at steps of 5 %; empty where nobody knows."""
    calibrated_share: float | None
    """Share of proposals that the threshold sent to the large model then."""
    data: DataOrigin | None
    """What it learned from, where that is told."""


class Scorer(ABC):
    """Turns features of proposals into scores. Rows are independent: NaN in one changes no other."""

    def __init__(self, facts: ScorerFacts) -> None:
        self.facts = facts

    def serve_at(self, threshold: float, *, share: float, score_quantiles: tuple[float, ...]) -> None:
        """Tell another threshold than the checkpoint's, with what it was set on."""
        self.facts = replace(self.facts, threshold=threshold, calibrated_share=share, score_quantiles=score_quantiles)

    def check(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> None:
        """See that a batch can be scored.

        Raises:
            InvalidArgument: a shape, dtype or token id is wrong; the message says which.
        """
        rows = token_ids.shape[0] if token_ids.ndim == 1 else -1
        _require(token_ids, "token_ids", (rows,), torch.int64)
        _require(top_logits, "top_logits", (rows, self.facts.num_top_logits), torch.float32)
        _require(hidden_states, "hidden_states", (rows, self.facts.hidden_size), torch.float32)

    @property
    @abstractmethod
    def counts(self) -> LaunchCounts:
        """How its passes were launched."""

    @abstractmethod
    def score(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """Scores in [0, 1], or NaN where a row cannot be told; float32 [n] on the CPU, of a batch that was checked.

        Args:
            top_logits: float32 [n, num_top_logits], raw, largest first.
            hidden_states: float32 [n, hidden size], after the final norm.
            token_ids: int64 [n], the proposals.
        """


def _require(tensor: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise InvalidArgument(
            f"{name} must be {dtype} {list(shape)}, not {tensor.dtype} {list(tensor.shape)}", field=name
        )

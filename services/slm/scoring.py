"""Batches on their way to the router and back: which request each score belongs to."""

from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from ..engine.features import top_logits
from ..errors import AllroadsError
from ..mesh.status import from_wire
from ..mesh.tensor_sender import TensorSender
from ..mesh.wire import router_pb2
from .request import Request


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one proposal, and of which state of which request it was asked."""

    request: Request
    generation: int
    position: int
    """Index of the proposal in the request's tokens."""
    value: float
    """In [0, 1], or NaN where the router could not tell."""


class ScoreBook:
    """Packs features into batches and matches the answers. Belongs to the decode thread."""

    def __init__(self, sender: TensorSender, scorer: str) -> None:
        self._sender = sender
        self._scorer = scorer
        self._batch_ids = count(1)
        self._asked: dict[int, list[tuple[Request, int, int]]] = {}
        self._num_top_logits = 0
        self.default_threshold: float | None = None
        """The checkpoint's own threshold."""

    def router_up(self, num_top_logits: int, default_threshold: float | None) -> None:
        """Learn what the router's scorer reads."""
        self._num_top_logits = num_top_logits
        self.default_threshold = default_threshold

    def router_down(self) -> None:
        """Forget all batches: they will not be answered."""
        self._asked.clear()

    def ask(
        self, requests: list[Request], token_ids: list[int], logits: Tensor, hidden_states: Tensor
    ) -> router_pb2.ScoreBatch:
        """A batch that asks for the score of the last token of each request's suffix.

        Args:
            requests: n requests, the proposal already in their suffix.
            token_ids: n proposals.
            logits: [n, output rows], raw, from which each proposal was taken.
            hidden_states: [n, hidden], after the final norm.
        """
        batch_id = next(self._batch_ids)
        self._asked[batch_id] = [(r, r.generation, len(r.sequence) - 1) for r in requests]
        features = (top_logits(logits, self._num_top_logits), hidden_states.float(), torch.tensor(token_ids))
        top, hidden, ids = self._sender.pack(batch_id, features)
        return router_pb2.ScoreBatch(
            batch_id=batch_id, scorer=self._scorer, top_logits=top, hidden_states=hidden, token_ids=ids
        )

    def answered(self, scores: router_pb2.Scores) -> tuple[list[Score], AllroadsError | None]:
        """The scores of a batch with their requests; NaN for all of them, and the error, where the batch failed.

        A batch that was forgotten, or is unknown, gives nothing.
        """
        self._sender.release(scores.batch_id)
        asked = self._asked.pop(scores.batch_id, [])
        error = from_wire(scores.error) if scores.HasField("error") else None
        values = list(scores.scores) if len(scores.scores) == len(asked) else [float("nan")] * len(asked)
        return [Score(*entry, value) for entry, value in zip(asked, values, strict=True)], error

"""Batches on their way to the router and back: which request each score belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count

import torch
from torch import Tensor

from ..cuda.graphed_function import GraphedFunction
from ..cuda.graphs import Recorder
from ..engine.features import top_logits
from ..errors import AllroadsError
from ..mesh.status import from_wire
from ..mesh.tensor_sender import TensorSender
from ..mesh.wire import router_pb2
from .request import Place, Request

_MAX_ROWS = 1024
"""Proposals of a batch; what is more goes with the next, so that no message outgrows its limit."""


def pack_features(num_top_logits: int, logits: Tensor, hidden_states: Tensor) -> tuple[Tensor, ...]:
    """What a scorer reads of a model's output. Can be recorded: nothing waits for the device.

    Args:
        num_top_logits: how many of the largest logits it reads.
        logits: float [n, output rows], raw.
        hidden_states: float [n, hidden], after the final norm.

    Returns:
        float32 [n, num_top_logits], largest first, and float32 [n, hidden].
    """
    return top_logits(logits, num_top_logits), hidden_states.float()


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
    """Packs features into batches and matches the answers. Belongs to the decode thread.

    One batch of each scorer is on its way at a time; what is proposed meanwhile goes with the next. So a slow
    router, or a fast small model, makes batches larger and not more numerous: a message costs more than a row.
    """

    def __init__(self, sender: TensorSender, recorder: Recorder | None = None) -> None:
        """`recorder`: of the decode thread, where features are packed by recordings."""
        self._sender = sender
        self._recorder = recorder
        self._packers: dict[int, GraphedFunction] = {}
        self._batch_ids = count(1)
        self._asked: dict[int, tuple[str, list[_Question]]] = {}
        self._unsent: dict[str, list[_Question]] = {}
        self._num_top_logits: dict[str, int] = {}

    def router_up(self, num_top_logits: Mapping[str, int]) -> None:
        """Learn which scorers there are, and how many logits each reads."""
        self._num_top_logits = dict(num_top_logits)

    def router_down(self) -> None:
        """Forget all questions: they will not be answered."""
        self._asked.clear()
        self._unsent.clear()

    def ask(
        self, scorer: str, requests: list[Request], token_ids: list[int], logits: Tensor, hidden_states: Tensor
    ) -> None:
        """Ask for the score of the last token of each request's suffix, when the router has time.

        Args:
            scorer: whose score.
            requests: n requests, the proposal already in their suffix.
            token_ids: n proposals.
            logits: [n, output rows], raw, from which each proposal was taken.
            hidden_states: [n, hidden], after the final norm.
        """
        top, hidden = self._packer(self._num_top_logits[scorer], logits, hidden_states)(logits, hidden_states)
        rows = zip(requests, token_ids, top, hidden, strict=True)
        self._unsent.setdefault(scorer, [])
        self._unsent[scorer] += [_Question(r, r.generation, len(r.sequence) - 1, *features) for r, *features in rows]

    def next_batches(self) -> list[router_pb2.ScoreBatch]:
        """What to send to the router now: one batch at most for each scorer that has none on its way."""
        busy = {scorer for scorer, _ in self._asked.values()}
        batches = [self._next_batch(scorer) for scorer in self._unsent if scorer not in busy]
        return [batch for batch in batches if batch is not None]

    def _packer(self, count: int, logits: Tensor, hidden_states: Tensor) -> GraphedFunction:
        """What packs so many logits; recorded when it is first wanted, which is when the mesh warms up."""
        if (packer := self._packers.get(count)) is None:
            examples = torch.zeros_like(logits[:1]), torch.zeros_like(hidden_states[:1])
            packer = GraphedFunction("packing features", partial(pack_features, count), examples, self._recorder)
            self._packers[count] = packer
        return packer

    def _next_batch(self, scorer: str) -> router_pb2.ScoreBatch | None:
        """Nothing for proposals that were dropped since."""
        questions = [question for question in self._unsent[scorer] if question.is_open]
        questions, self._unsent[scorer] = questions[:_MAX_ROWS], questions[_MAX_ROWS:]
        if not questions:
            return None
        batch_id = next(self._batch_ids)
        self._asked[batch_id] = scorer, questions
        features = (
            torch.stack([question.top_logits for question in questions]),
            torch.stack([question.hidden_state for question in questions]),
            torch.tensor([question.token_id for question in questions]),
        )
        top, hidden, ids = self._sender.pack(batch_id, features)
        return router_pb2.ScoreBatch(
            batch_id=batch_id, scorer=scorer, top_logits=top, hidden_states=hidden, token_ids=ids
        )

    def answered(self, scores: router_pb2.Scores) -> tuple[list[Score], AllroadsError | None]:
        """The scores of a batch with their requests; NaN for all of them, and the error, where the batch failed.

        A batch that was forgotten, or is unknown, gives nothing.
        """
        self._sender.release(scores.batch_id)
        _, asked = self._asked.pop(scores.batch_id, ("", []))
        error = from_wire(scores.error) if scores.HasField("error") else None
        values = list(scores.scores) if len(scores.scores) == len(asked) else [float("nan")] * len(asked)
        scored = zip(asked, values, strict=True)
        return [
            Score(question.request, question.generation, question.position, value) for question, value in scored
        ], error


@dataclass(frozen=True, slots=True)
class _Question:
    """A proposal to be scored, with its features."""

    request: Request
    generation: int
    position: int
    token_id: int
    top_logits: Tensor
    """float32 [num_top_logits]"""
    hidden_state: Tensor
    """float32 [hidden]"""

    @property
    def is_open(self) -> bool:
        """Whether the proposal still stands."""
        return self.request.place is not Place.DONE and self.request.generation == self.generation

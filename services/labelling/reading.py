"""What a model says at each place of a text that another one wrote, read off the passes that compute it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..engine.engine import Engine
from ..engine.features import entropy, top_logits
from ..engine.sequence import Sequence as EngineSequence
from ..engine.step import Drafted
from ..errors import Internal
from .writing import GREEDY, nobody

_MAX_DRAFTS = 128
"""Tokens whose logits are kept at a time: a row of them is as wide as the vocabulary."""
_MAX_WAITING = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """Row i is what the model says in place of answer token i, given all that comes before it."""

    proposals: Tensor
    """int64 [n], its own next token."""
    top_logits: Tensor
    """float32 [n, k], raw, largest first."""
    hidden_states: Tensor
    """float32 [n, hidden], after the final norm."""
    entropies: Tensor
    """float32 [n], nats."""


@dataclass(slots=True)
class _Open:
    """A text in the engine: `answer[:num_read]` is done, or being computed."""

    number: int
    answer: Sequence[int]
    sequence: EngineSequence
    num_read: int = 0
    parts: list[Reading] = field(default_factory=list)

    def draft(self) -> None:
        """Feed the next tokens: n rows take n - 1 drafts, since the first is predicted by what stands before it."""
        start, end = self.num_read, min(self.num_read + _MAX_DRAFTS, len(self.answer))
        if start:
            self.sequence.append([self.answer[start - 1]])
        self.sequence.draft(list(self.answer[start : end - 1]))
        self.num_read = end


def read(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    num_top_logits: int,
    on_done: Callable[[int], None] = nobody,
) -> list[Reading | None]:
    """Let a model read along answers, none of them empty.

    Args:
        engine: has no open sequence.
        prompts: what each answer follows.
        answers: tokens that are read.
        num_top_logits: how many of the largest logits are kept.
        on_done: is told how many more are done.

    Returns:
        A reading for each answer; None where the model gave no number.

    Raises:
        ContextLengthExceeded: a prompt with its answer can never fit.
    """
    results: list[Reading | None] = [None] * len(prompts)
    ready = deque(range(len(prompts)))
    opened: dict[EngineSequence, _Open] = {}
    try:
        while ready or opened:
            while ready and engine.scheduler.num_waiting < _MAX_WAITING:
                work = _begin(engine, number := ready.popleft(), prompts[number], answers[number])
                opened[work.sequence] = work
            engine.admit()
            step = engine.step()
            if step is None:
                raise Internal(f"{len(opened)} sequences are open, and none can be computed")
            for sequence in step.failed:
                engine.close(opened.pop(sequence).sequence)
                on_done(1)
            for drafted in step.drafted:
                work = opened[drafted.sequence]
                work.parts.append(_reading(drafted, num_top_logits))
                if work.num_read < len(work.answer):
                    work.draft()
                    continue
                results[work.number] = _joined(work.parts)
                engine.close(opened.pop(drafted.sequence).sequence)
                on_done(1)
    finally:
        for sequence in opened:
            engine.close(sequence)
    return results


def _begin(engine: Engine, number: int, prompt: Sequence[int], answer: Sequence[int]) -> _Open:
    sequence = EngineSequence(
        tokens=list(prompt),
        max_length=len(prompt) + len(answer),
        sampling=GREEDY,
        num_prompt_tokens=len(prompt),
        keeps_hidden_states=True,
    )
    work = _Open(number, answer, sequence)
    work.draft()
    engine.open(sequence)
    return work


def _reading(drafted: Drafted, num_top_logits: int) -> Reading:
    if drafted.hidden_states is None:
        raise Internal("the hidden states of drafts were asked for and did not come")
    logits = drafted.logits.float()
    return Reading(
        proposals=logits.argmax(dim=-1).cpu(),
        top_logits=top_logits(logits, num_top_logits).cpu(),
        hidden_states=drafted.hidden_states.float().cpu(),
        entropies=entropy(logits).cpu(),
    )


def _joined(parts: Sequence[Reading]) -> Reading:
    return Reading(
        proposals=torch.cat([part.proposals for part in parts]),
        top_logits=torch.cat([part.top_logits for part in parts]),
        hidden_states=torch.cat([part.hidden_states for part in parts]),
        entropies=torch.cat([part.entropies for part in parts]),
    )

"""Greedy text of a model for many contexts, by continuous batching on our engine."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..engine.engine import Engine
from ..engine.sampling import SamplingParams
from ..engine.sequence import Sequence as EngineSequence
from ..errors import Internal

GREEDY = SamplingParams(temperature=0.0)
_MAX_WAITING = 64
"""Sequences opened before they have KV: enough that the engine can choose."""


def nobody(count: int) -> None:
    """Is told of progress, and does nothing about it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A context to go on from."""

    token_ids: Sequence[int]
    max_new_tokens: int
    stops: frozenset[int]
    """Tokens that count as ends."""
    num_stops: int = 1
    """How many of them are written before it is over."""
    final: frozenset[int] = frozenset()
    """Tokens of which the first one ends it whatever else was asked."""


@dataclass(slots=True)
class _Open:
    """An ask in the engine."""

    place: tuple[int, int]
    """Its group, and its place in it."""
    ask: Ask
    sequence: EngineSequence
    written: list[int] = field(default_factory=list)
    num_stops: int = 0

    def take(self, token_id: int) -> bool:
        """Write a token; whether that was the last."""
        self.written.append(token_id)
        self.num_stops += token_id in self.ask.stops
        return (
            token_id in self.ask.final
            or self.num_stops >= self.ask.num_stops
            or len(self.written) >= self.ask.max_new_tokens
        )


def write(
    engine: Engine, groups: Sequence[Sequence[Ask]], on_done: Callable[[int], None] = nobody
) -> list[list[list[int] | None]]:
    """Go on greedily from every context, up to and with its last token.

    Contexts of a group begin alike. The first of each goes ahead and the others follow when its context is computed,
    so that they find its KV: put the longest first.

    Args:
        engine: has no open sequence.
        groups: of contexts that fit the engine.
        on_done: is told how many more are done.

    Returns:
        What was written, in the order of `groups`; None where the model gave no number.

    Raises:
        ContextLengthExceeded: a context and its continuation can never fit.
    """
    results: list[list[list[int] | None]] = [[None] * len(group) for group in groups]
    ready = deque((number, 0) for number, group in enumerate(groups) if group)
    followed = set(ready)
    """Places whose followers wait for them."""
    opened: dict[EngineSequence, _Open] = {}

    def release(place: tuple[int, int]) -> None:
        if place in followed:
            followed.remove(place)
            number = place[0]
            # Before other groups, while the KV is there.
            ready.extendleft((number, index) for index in reversed(range(1, len(groups[number]))))

    def end(work: _Open, written: list[int] | None) -> None:
        number, index = work.place
        results[number][index] = written
        engine.close(opened.pop(work.sequence).sequence)
        on_done(1)

    try:
        while ready or opened:
            while ready and engine.scheduler.num_waiting < _MAX_WAITING:
                number, index = ready.popleft()
                work = _begin(engine, (number, index), groups[number][index])
                opened[work.sequence] = work
            engine.admit()
            step = engine.step()
            if step is None:
                raise Internal(f"{len(opened)} sequences are open, and none can be computed")
            for sequence in step.failed:
                release(opened[sequence].place)
                end(opened[sequence], None)
            for sequence, proposal in zip(step.sequences, step.proposals, strict=True):
                work = opened[sequence]
                release(work.place)
                if work.take(proposal):
                    end(work, work.written)
                else:
                    sequence.append([proposal])
    finally:
        for sequence in opened:
            engine.close(sequence)
    return results


def _begin(engine: Engine, place: tuple[int, int], ask: Ask) -> _Open:
    sequence = EngineSequence(
        tokens=list(ask.token_ids),
        max_length=len(ask.token_ids) + ask.max_new_tokens,
        sampling=GREEDY,
        num_prompt_tokens=len(ask.token_ids),
    )
    engine.open(sequence)
    return _Open(place, ask, sequence)

"""Who runs in the next step: continuous batching under a token budget, and who gets KV blocks.

First come, first served; but a sequence whose blocks are not free does not hold up later ones that fit,
until it has been passed over so often that it must not starve.
"""

from collections import deque

from ..errors import ContextLengthExceeded, ResourceExhausted
from .block_pool import BlockPool
from .sequence import Sequence, State

MAX_BYPASSED = 64
"""How often later sequences may take blocks past a waiting one before they queue behind it."""


class Scheduler:
    """Keeps waiting and running sequences; knows the pool, not the model."""

    def __init__(
        self, pool: BlockPool, *, max_context: int, max_running: int, max_waiting: int, max_step_tokens: int
    ) -> None:
        self.pool = pool
        self._max_context = max_context
        self._max_waiting = max_waiting
        self._max_step_tokens = max_step_tokens
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._free_slots = list(range(max_running - 1, -1, -1))

    @property
    def num_waiting(self) -> int:
        """Sequences without KV."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with KV, pending ones included."""
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait for its blocks.

        Raises:
            ContextLengthExceeded: it can never fit.
            ResourceExhausted: too many wait.
        """
        if sequence.max_length > self._max_context:
            raise ContextLengthExceeded(
                f"{sequence.max_length} tokens needed, the context window has {self._max_context}", field="messages"
            )
        needed = self.pool.num_needed(sequence.max_length)
        if needed > self.pool.num_blocks:
            raise ContextLengthExceeded(
                f"{needed} KV blocks of {self.pool.block_size} tokens needed, the pool has {self.pool.num_blocks}",
                field="max_tokens",
            )
        if len(self._waiting) >= self._max_waiting:
            raise ResourceExhausted(f"{len(self._waiting)} sequences wait already", retry_after_s=1.0)
        sequence.move(State.WAITING)
        self._waiting.append(sequence)

    def admit(self) -> list[Sequence]:
        """Give blocks to waiting sequences as far as they go; the admitted ones, now running."""
        admitted: list[Sequence] = []
        if not self._waiting:
            return admitted
        passed: list[Sequence] = []
        for sequence in list(self._waiting):
            needed = self.pool.num_needed(sequence.max_length)
            if self._free_slots and needed <= self.pool.num_free:
                sequence.blocks = self.pool.allocate(needed)
                sequence.slot = self._free_slots.pop()
                sequence.move(State.RUNNING)
                admitted.append(sequence)
                for other in passed:
                    other.num_bypassed += 1
                continue
            passed.append(sequence)
            if not self._free_slots or sequence.num_bypassed >= MAX_BYPASSED:
                break
        if admitted:
            self._running += admitted
            taken = set(map(id, admitted))
            self._waiting = deque(s for s in self._waiting if id(s) not in taken)
        return admitted

    def next_batch(self) -> list[tuple[Sequence, int]]:
        """Sequences to run and how many tokens of each, within the budget. Single tokens first, then extends."""
        budget = self._max_step_tokens
        ready = [s for s in self._running if s.state is State.RUNNING and s.num_uncomputed]
        ready.sort(key=lambda s: s.num_uncomputed > 1)
        batch: list[tuple[Sequence, int]] = []
        for sequence in ready:
            count = min(sequence.num_uncomputed, budget)
            if count == 0:
                break
            batch.append((sequence, count))
            budget -= count
        if len(batch) < len(ready):
            # Those that got nothing come first next time.
            served = {id(sequence) for sequence, _ in batch}
            self._running.sort(key=lambda s: id(s) in served)
        return batch

    def remove(self, sequence: Sequence) -> None:
        """Close a sequence and give everything back; a closed one is left alone."""
        if sequence.slot >= 0:
            self._running.remove(sequence)
            self.pool.free(sequence.blocks)
            self._free_slots.append(sequence.slot)
            sequence.blocks, sequence.slot = [], -1
        elif sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        sequence.move(State.CLOSED)

"""Who runs in the next step: continuous batching under a token budget, and who gets KV blocks.

First come, first served; but a sequence whose blocks are not free does not hold up later ones that fit,
until it has been passed over so often that it must not starve. In a step, sequences that need one token
come first, then short extends before long ones; the one that has waited longest always gets a share.
Before they run at all, they may wait for company (`LaunchGate`).
"""

import time
from collections import deque
from collections.abc import Callable

from ..config import CatchUp
from ..errors import ContextLengthExceeded, ResourceExhausted
from .block_pool import BlockPool
from .launch_gate import LaunchGate
from .sequence import Sequence, State

MAX_BYPASSED = 64
"""How often later sequences may take blocks past a waiting one before they queue behind it."""
_OLDEST_SHARE = 4
"""The extend that has waited longest gets at least one part in so many of what single tokens leave."""
_MAX_AHEAD_TOKENS = 64
"""Tokens computed ahead in one idle step, so that what comes meanwhile waits for a short step only."""

Batch = list[tuple[Sequence, int]]
"""Sequences of a step, and how many tokens of each."""


class Scheduler:
    """Keeps waiting and running sequences; knows the pool, not the model."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_context: int,
        max_running: int,
        max_waiting: int,
        max_step_tokens: int,
        catch_up: CatchUp = "off",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.gate = LaunchGate(clock)
        """Whether those who are ready wait for company."""
        self.num_prompt_tokens = 0
        """Of all sequences admitted so far: their tokens at that time."""
        self.num_cached_tokens = 0
        """And how many of these were found in the pool."""
        self._max_context = max_context
        self._max_waiting = max_waiting
        self._max_step_tokens = max_step_tokens
        self._catch_up = catch_up
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
        """Give blocks to waiting sequences as far as they go; the admitted ones, now running.

        Those whose grammar is being built, or whose KV is being fetched, come later and hold up nobody.
        """
        admitted: list[Sequence] = []
        if not self._waiting:
            return admitted
        passed: list[Sequence] = []
        for sequence in list(self._waiting):
            if sequence.is_held or (sequence.matcher is not None and not sequence.matcher.is_ready):
                continue
            if self._free_slots and self._take_blocks(sequence):
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

    def next_batch(self) -> Batch:
        """Sequences to run and how many tokens of each, within the budget.

        While the gate holds back those for whom a token is wanted, others are computed ahead as in an idle step.
        """
        ready = [s for s in self._running if s.state is State.RUNNING and s.num_uncomputed > 0]
        wanted = [s for s in ready if not s.is_ahead]
        batch: Batch = []
        # Who has KV here could come: a request reserves its place before it starts.
        if self.gate.opens(wanted, len(self._running)):
            batch = self._foreground(wanted)
            self.gate.launched(wanted, batch)
        if self._catch_up == "eager":
            room = self._max_step_tokens - sum(count for _, count in batch)
        else:
            room = 0 if batch or self._catch_up == "off" else min(self._max_step_tokens, _MAX_AHEAD_TOKENS)
        return batch + _fill([s for s in ready if s.is_ahead], room)

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

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Reserve a sequence's blocks, those that hold its beginning already among them; False if they are not free."""
        # Drafts are fed even where their KV is there: it is their logits that are wanted.
        prefix = self.pool.match(sequence.tokens[: sequence.drafts_from])
        needed = self.pool.num_needed(sequence.max_length)
        if not self.pool.can_allocate(needed, prefix):
            return False
        sequence.blocks = self.pool.allocate(needed, prefix)
        sequence.num_registered_blocks = len(prefix)
        sequence.num_cached = sequence.num_computed = len(prefix) * self.pool.block_size
        self.num_prompt_tokens += len(sequence)
        self.num_cached_tokens += sequence.num_cached
        return True

    def _foreground(self, ready: list[Sequence]) -> Batch:
        """Single tokens, then extends: the shortest first, but so that the oldest gets its share."""
        budget = self._max_step_tokens
        single = [s for s in ready if s.num_uncomputed == 1]
        batch = _fill(single, budget)
        if len(batch) < len(single):
            # Those that got nothing come first next time.
            served = {id(sequence) for sequence, _ in batch}
            self._running.sort(key=lambda s: id(s) in served)
            return batch
        extends = [s for s in ready if s.num_uncomputed > 1]
        if not extends:
            return batch
        room = budget - len(batch)
        oldest = extends.pop(0)
        share = min(oldest.num_uncomputed, max(1, room // _OLDEST_SHARE))
        others = _fill(sorted(extends, key=lambda s: s.num_uncomputed), room - share)
        return batch + _fill([oldest], room - sum(count for _, count in others)) + others


def _fill(sequences: list[Sequence], room: int) -> Batch:
    """Sequences in order, each with all its tokens while there is room, the last with what is left."""
    batch: Batch = []
    for sequence in sequences:
        count = min(sequence.num_uncomputed, room)
        if count <= 0:
            break
        batch.append((sequence, count))
        room -= count
    return batch

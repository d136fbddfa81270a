"""When a batch is launched: once enough sequences are ready for it, or the oldest of them has waited enough.

A batch costs nearly as much for one sequence as for many, so it may pay to wait for company. Nobody waits for company
that cannot come, nor longer than a fixed time, counted from when the oldest became ready.
"""

import time
from collections.abc import Callable, Collection, Iterable

from .sequence import Sequence

_TICK_S = 1e-6
"""What is left of a wait and is less than this is over."""


class LaunchGate:
    """Holds ready sequences back. Belongs to the engine's thread; launches at once until it is set.

    A batch that was launched and did not fit one step goes on: whoever belongs to it is not held again, and whoever
    is ready meanwhile goes along.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.threshold = 1
        """Sequences that must be ready, as it was set."""
        self.num_full = 0
        """Batches launched so far because enough sequences were ready."""
        self.num_last = 0
        """And because nobody else could come."""
        self.num_flushed = 0
        """And because the oldest had waited enough."""
        self._clock = clock
        self._flush_s = 0.0
        self._is_open = True
        self._since_s: dict[Sequence, float] = {}
        """Since when each sequence that was ready at the last look has waited."""
        self._fed: list[Sequence] = []
        """Sequences of the step in hand."""
        self._under_way: set[Sequence] = set()
        """Sequences that were launched and have tokens left which did not fit the step."""
        self._deadline_s: float | None = None

    def set(self, threshold: int, flush_s: float) -> None:
        """From now on wait for so many sequences, but no longer than `flush_s` seconds; 1, or no time, is not to wait.

        Who waits already is judged by the new numbers, from when it became ready.
        """
        self.threshold, self._flush_s = threshold, flush_s
        self._is_open = threshold <= 1 or flush_s <= 0.0
        if self._is_open:
            self._since_s, self._fed, self._under_way, self._deadline_s = {}, [], set(), None

    @property
    def is_holding(self) -> bool:
        """Whether sequences were held back at the last look."""
        return self._deadline_s is not None

    @property
    def held_s(self) -> float:
        """For how many seconds they still are, if nobody comes; 0 where none are."""
        return 0.0 if self._deadline_s is None else max(0.0, self._deadline_s - self._clock())

    def opens(self, ready: Collection[Sequence], num_possible: int) -> bool:
        """Whether those who are ready are launched now.

        Args:
            ready: sequences for which a token is wanted; all of them, and nobody else.
            num_possible: how many could be ready at most, those who are among them.
        """
        if self._is_open:
            self.num_full += bool(ready)
            return True
        now_s = self._clock()
        self._since_s = {sequence: self._since_s.get(sequence, now_s) for sequence in ready}
        self._deadline_s = None
        if not ready or not self._under_way.isdisjoint(ready):
            return True
        if len(ready) >= self.threshold:
            self.num_full += 1
        elif len(ready) >= num_possible:
            self.num_last += 1
        else:
            deadline_s = min(self._since_s.values()) + self._flush_s
            if deadline_s - now_s > _TICK_S:
                self._deadline_s = deadline_s
                return False
            self.num_flushed += 1
        return True

    def launched(self, ready: Iterable[Sequence], batch: Iterable[tuple[Sequence, int]]) -> None:
        """Those who were ready were let through, and this is what a step takes of them: how many tokens of whom."""
        if self._is_open:
            return
        counts = dict(batch)
        self._fed = list(counts)
        self._under_way = {sequence for sequence in ready if counts.get(sequence, 0) < sequence.num_uncomputed}

    def ended(self) -> None:
        """The step is over: who took part in it and is ready again has waited since now."""
        if self._fed:
            self._since_s = dict.fromkeys(self._fed, self._clock())
            self._fed = []

"""Wakes readers at intervals: a wake-up costs more than a token, and fast steps would drown the gateway."""

import asyncio
import math

from .sequence import Sequence


class Waker:
    """Gathers sequences with news. Where steps are slower than the interval, nothing is held up."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._news: set[Sequence] = set()
        self._last_s = -math.inf
        self._is_due = False

    def add(self, sequence: Sequence) -> None:
        """Tokens came for a sequence."""
        self._news.add(sequence)

    def wake_soon(self) -> None:
        """Wake all that have news: now, or when the interval is over."""
        if self._is_due:
            return
        loop = asyncio.get_running_loop()
        wait_s = self._last_s + self._interval_s - loop.time()
        if wait_s > 0:
            self._is_due = True
            loop.call_later(wait_s, self._wake)
        else:
            self._wake()

    def _wake(self) -> None:
        self._is_due = False
        self._last_s = asyncio.get_running_loop().time()
        news, self._news = self._news, set()
        for sequence in news:
            sequence.wake()

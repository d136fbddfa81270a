"""Ends waits that nobody ends: a stream that waits for a peer's word would wait for ever if the peer died.

One thread looks now and then which waits are over. It is not woken for a wait that is added to others, so a read
pays for an append. It asks CUDA for nothing, since CUDA may be what hangs: what does ask has threads of its own.
"""

import atexit
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Event, Thread, current_thread

from ..errors import AllroadsError

logger = logging.getLogger(__name__)

_PERIOD_S = 0.25
"""How often it looks at least, while there is something to look at."""


@dataclass(frozen=True, slots=True)
class _Wait:
    deadline: float
    is_over: Callable[[], bool]
    end: Callable[[], None]


class LeaseWatch:
    """Watches the waits of one process. Its thread starts with the first of them; all its threads are daemons."""

    def __init__(self, limit_s: float, max_waits: int = 4096) -> None:
        """`limit_s`: how long a wait may last. `max_waits`: how many may go on at once."""
        self.limit_s, self._max_waits = limit_s, max_waits
        self._changed = Condition()
        self._waits: deque[_Wait] = deque()
        self._thread: Thread | None = None
        self._errands: set[Thread] = set()
        self._is_asleep = False
        self._has_begun = False
        self._stopping = Event()

    def has_room(self) -> bool:
        """Whether one more wait can be watched. Drops those that are over, in the order they came."""
        with self._changed:
            while self._waits and self._waits[0].is_over():
                self._waits.popleft()
            return len(self._waits) < self._max_waits

    def add(self, is_over: Callable[[], bool], end: Callable[[], None]) -> None:
        """Watch a wait. Should it last longer than the limit, `end` is called once, in the watch's thread.

        Neither asks CUDA for anything, waits or raises. `is_over` is called by any thread.
        """
        with self._changed:
            self._waits.append(_Wait(time.monotonic() + self.limit_s, is_over, end))
            if self._thread is None:
                self._thread = self._start(self._run, "leases")
            elif self._is_asleep:
                self._is_asleep = False
                self._changed.notify()

    def later(self, is_due: Callable[[], bool], run: Callable[[], None], *, after_s: float = 0.0) -> None:
        """Call `run` in a thread of its own, so many seconds from now or later, once `is_due`, which it asks as well.

        Not while a wait goes on: to free memory CUDA may wait for the whole device, and with it for that wait, and
        other threads' calls would wait for CUDA.
        """

        def errand() -> None:
            self._stopping.wait(after_s)
            while not self._stopping.is_set():
                if self._is_quiet() and _asked(is_due):
                    _done(run)
                    break
                self._stopping.wait(min(self.limit_s / 4, _PERIOD_S))
            with self._changed:
                self._errands.discard(current_thread())

        with self._changed:
            self._errands.add(self._start(errand, "lease errand"))

    def stop(self) -> None:
        """End all waits, and the threads with all that they have still to do. Harmless when repeated."""
        self._stopping.set()
        with self._changed:
            for wait in self._waits:
                _look(wait, wait.deadline)
            self._changed.notify()
            threads = [*self._errands, *([] if self._thread is None else [self._thread])]
        for thread in threads:
            thread.join(_PERIOD_S)

    def _start(self, work: Callable[[], None], name: str) -> Thread:
        if not self._has_begun:
            self._has_begun = True
            # A thread that is inside torch when the interpreter ends would abort the process.
            atexit.register(self.stop)
        thread = Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def _is_quiet(self) -> bool:
        with self._changed:
            self._waits = deque(wait for wait in self._waits if not wait.is_over())
            return not self._waits

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_asleep = not self._waits
                if not self._stopping.is_set():
                    self._changed.wait(None if self._is_asleep else min(self.limit_s / 4, _PERIOD_S))
                if self._stopping.is_set():
                    return
                waits = list(self._waits)
            now = time.monotonic()
            over = {id(wait) for wait in waits if _look(wait, now)}
            with self._changed:
                self._waits = deque(wait for wait in self._waits if id(wait) not in over)


def _look(wait: _Wait, now: float) -> bool:
    """Whether a wait is over, now or already."""
    if wait.is_over():
        return True
    if now < wait.deadline:
        return False
    wait.end()
    return True


def _asked(is_due: Callable[[], bool]) -> bool:
    """What CUDA can say nothing of any more is done."""
    try:
        return is_due()
    except AllroadsError as error:
        logger.warning("the end of work is no longer waited for: %s", error.message)
        return True


def _done(action: Callable[[], None]) -> None:
    try:
        action()
    except AllroadsError as error:
        logger.warning("an errand of the watch of leases failed: %s", error.message)

"""Ends waits that nobody ends: a stream that waits for a peer's word would wait for ever if the peer died.

One thread asks now and then which waits are over. It is not woken for a wait that is added to others, so a step
pays for an append.
"""

import atexit
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Thread, Timer

from ..errors import AllroadsError

logger = logging.getLogger(__name__)

_PERIOD_S = 0.25
"""How often it asks at least, while there is something to ask."""


@dataclass(frozen=True, slots=True)
class _Wait:
    deadline: float
    is_over: Callable[[], bool]
    end: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Errand:
    not_before: float
    is_due: Callable[[], bool]
    run: Callable[[], None]


class LeaseWatch:
    """Watches the waits of one process. Its thread starts with the first of them, and is a daemon."""

    def __init__(self, limit_s: float, max_waits: int = 4096) -> None:
        """`limit_s`: how long a wait may last. `max_waits`: how many may go on at once."""
        self.limit_s, self._max_waits = limit_s, max_waits
        self._changed = Condition()
        self._waits: deque[_Wait] = deque()
        self._errands: list[_Errand] = []
        self._thread: Thread | None = None
        self._is_asleep = False
        self._is_stopping = False

    def has_room(self) -> bool:
        """Whether one more wait can be watched. Drops those that are over, in the order they came."""
        with self._changed:
            while self._waits and _asked(self._waits[0].is_over):
                self._waits.popleft()
            return len(self._waits) < self._max_waits

    def add(self, is_over: Callable[[], bool], end: Callable[[], None]) -> None:
        """Watch a wait. Should it last longer than the limit, `end` is called once, in the watch's thread.

        `is_over` is called by any thread, and never waits.
        """
        with self._changed:
            self._waits.append(_Wait(time.monotonic() + self.limit_s, is_over, end))
            self._wake()

    def later(self, is_due: Callable[[], bool], run: Callable[[], None], *, after_s: float = 0.0) -> None:
        """Call `run` in a thread of its own, so many seconds from now or later, once `is_due`.

        Not while a wait goes on, and not in the watch's thread: freeing memory may wait for the whole device, and with
        it for a wait that only the watch would end.
        """
        with self._changed:
            self._errands.append(_Errand(time.monotonic() + after_s, is_due, run))
            self._wake()

    def stop(self) -> None:
        """End the thread, and with it all that it has still to do. Harmless when repeated."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_PERIOD_S)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="leases", daemon=True)
            self._thread.start()
            # A thread that is inside torch when the interpreter ends would abort the process.
            atexit.register(self.stop)
        elif self._is_asleep:
            self._is_asleep = False
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_asleep = not self._waits and not self._errands
                self._changed.wait(None if self._is_asleep else min(self.limit_s / 4, _PERIOD_S))
                if self._is_stopping:
                    return
                waits, errands = list(self._waits), list(self._errands)
            now = time.monotonic()
            over = {id(wait) for wait in waits if self._look(wait, now)}
            is_quiet = len(over) == len(waits)
            done = {id(errand) for errand in errands if is_quiet and _tried(errand, now)}
            with self._changed:
                self._waits = deque(wait for wait in self._waits if id(wait) not in over)
                self._errands = [errand for errand in self._errands if id(errand) not in done]

    def _look(self, wait: _Wait, now: float) -> bool:
        if _asked(wait.is_over):
            return True
        if now < wait.deadline:
            return False
        stuck = Timer(self.limit_s, _tell_stuck)
        stuck.daemon = True
        stuck.start()
        _done(wait.end)
        stuck.cancel()
        return True


def _tell_stuck() -> None:
    """Another thread is inside CUDA, which waits there for the very wait that would be ended. Nobody can help then."""
    logger.critical("a wait on the GPU cannot be ended, as CUDA is busy with other work of this process: restart it")


def _tried(errand: _Errand, now: float) -> bool:
    if now < errand.not_before or not _asked(errand.is_due):
        return False
    Thread(target=_done, args=(errand.run,), name="lease errand", daemon=True).start()
    return True


def _asked(is_over: Callable[[], bool]) -> bool:
    """A wait of which CUDA can say nothing any more is over."""
    try:
        return is_over()
    except AllroadsError as error:
        logger.warning("a wait is no longer watched: %s", error.message)
        return True


def _done(action: Callable[[], None]) -> None:
    try:
        action()
    except AllroadsError as error:
        logger.warning("the watch of leases could not do its work: %s", error.message)

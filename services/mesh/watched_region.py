"""Memory of a GPU at either end of a stream, and waits on its words that may not last.

A wait is over when the peer's word comes, when the watch ends it, or when the region is closed: whichever is first.
To end one is a store of the host's, and to see whether it is over a load. CUDA is asked for neither: while it loads a
kernel it may hold all other calls of the process up until the device has nothing left to do, which is until that wait
is over.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from ..cuda.device_memory import DeviceMemory, IpcDevice, Lane, Mark
from ..errors import Unavailable
from .lease_watch import LeaseWatch
from .region_words import RegionWords

logger = logging.getLogger(__name__)


class WatchedRegion:
    """What both ends have: memory, words, and an end that waits for what is still queued."""

    def __init__(
        self,
        device: IpcDevice,
        memory: DeviceMemory,
        words: RegionWords,
        watch: LeaseWatch,
        on_closed: Callable[[], None],
    ) -> None:
        """Takes memory and words over. `on_closed`: called when they are gone."""
        self.fault = ""
        self._device, self._memory, self._words, self._watch = device, memory, words, watch
        self._on_closed = on_closed
        self._lock = Lock()
        """Held for loads and stores alone, never while CUDA is asked for something."""
        self._is_closed = self._is_let_go = False
        self._last: Mark | None = None
        self._waited: dict[int, int] = {}
        """By place of a word that was waited for: what for, last."""

    def _require_use(self) -> None:
        if self._is_closed or self.fault:
            raise Unavailable(self.fault or "the region is closed")

    def _fail(self, missing: str) -> None:
        """The peer's word has not come for too long."""
        if not self.fault:
            self.fault = f"the peer's {missing} word did not come within {self._watch.limit_s:g} s"
            logger.warning("a CUDA IPC region is of no more use: %s", self.fault)

    def _break(self, lane: Lane, error: Unavailable) -> None:
        """Something could not be queued in a lane: what was queued before that is still on its way."""
        self.fault = self.fault or error.message
        with suppress(Unavailable):
            self._last = lane.mark()

    def _wait(self, lane: Lane, offset: int, value: int) -> None:
        """Let a lane wait for the peer's ready word, under the watch."""
        if not self._watch.has_room():
            raise Unavailable("too many leases wait")
        with self._lock:
            self._waited[offset] = value
        # Before it is queued: to queue may take as long as the wait does.
        self._watch.add(lambda: self._is_over(offset, value), lambda: self._end_wait(offset, value))
        lane.wait_word(self._words.on_device, offset, value)

    def _is_over(self, offset: int, value: int) -> bool:
        with self._lock:
            return self._is_let_go or self._words.has_come(offset, value)

    def _end_wait(self, offset: int, value: int) -> None:
        with self._lock:
            if not self._is_closed:
                self._fail("ready")
                self._words.let_pass(offset, value)

    def _leave(self, *, after_s: float = 0.0) -> None:
        """End all waits, and let go of the memory once no work is left; in a thread, as that may take a while."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for offset, value in self._waited.items():
                self._words.let_pass(offset, value)
        self._words.unlink()
        self._watch.later(self._is_idle, self._let_go, after_s=after_s)

    def _is_idle(self) -> bool:
        return self._last is None or self._last.is_reached()

    def _let_go(self) -> None:
        with self._lock:
            self._is_let_go = True
        for part in (self._memory, self._words):
            try:
                part.close()
            except Unavailable as error:
                logger.warning("memory of a CUDA IPC region was not given back: %s", error.message)
        self._on_closed()


@contextmanager
def borrowed_lane(device: IpcDevice) -> Iterator[Lane]:
    """A lane for a while, at whose end nothing is queued in it."""
    lane = device.new_lane()
    try:
        yield lane
    finally:
        device.free_lane(lane)

"""Memory of a GPU at either end of a stream, and waits on its words that may not last.

A wait is over when the peer's word comes, when the watch ends it, or when the region is closed: whichever is first.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from ..cuda.device_memory import DeviceMemory, IpcDevice, Lane, Mark
from ..errors import Unavailable
from .lease_watch import LeaseWatch

logger = logging.getLogger(__name__)


class WatchedRegion:
    """What both ends have: memory, and waits on it that may not last."""

    def __init__(
        self, device: IpcDevice, memory: DeviceMemory, watch: LeaseWatch, on_closed: Callable[[], None], peer_word: str
    ) -> None:
        """`on_closed`: called when the memory is gone. `peer_word`: which word the peer is waited for by."""
        self.fault = ""
        self._device, self._memory, self._watch = device, memory, watch
        self._on_closed, self._peer_word = on_closed, peer_word
        self._lock = Lock()
        self._is_closed = False
        self._last: Mark | None = None
        self._waited: dict[int, int] = {}
        """By place of a word that was waited for: what for, last."""

    def _require_room(self) -> None:
        if self._is_closed or self.fault or not self._watch.has_room():
            raise Unavailable(self.fault or "the region is closed, or too many of its leases wait")

    def _watch_wait(self, lane: Lane, offset: int, value: int) -> None:
        """Watch what was queued in a lane: it waits for a word."""
        mark = self._last = lane.mark()
        self._waited[offset] = value
        self._watch.add(mark.is_reached, lambda: self._end_wait(offset, value))

    def _end_wait(self, offset: int, value: int) -> None:
        with self._lock:
            if self._is_closed:
                return
            if not self.fault:
                self.fault = f"the peer's {self._peer_word} word did not come within {self._watch.limit_s:g} s"
                logger.warning("a CUDA IPC region is of no more use: %s", self.fault)
            self._memory.put_word(offset, value)

    def _leave(self, *, after_s: float = 0.0) -> None:
        """End all waits, and let go of the memory once no work is left; by the watch, as that may take a while."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if not self._is_idle():
                    for offset, value in self._waited.items():
                        self._memory.put_word(offset, value)
            except Unavailable as error:
                logger.warning("a CUDA IPC region is left as it is: %s", error.message)
                return
        self._watch.later(self._is_idle, self._let_go, after_s=after_s)

    def _is_idle(self) -> bool:
        return self._last is None or self._last.is_reached()

    def _let_go(self) -> None:
        try:
            self._memory.close()
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

"""Words of the host's memory that a GPU reads and writes: a mapping that the driver was told of.

The same file may be mapped and told of in several processes: its pages are the same ones everywhere, and those of a GPU
see what any host stores there, and the hosts what a GPU writes.
"""

import ctypes
import mmap
from threading import Lock
from typing import Any

from .capturing import CAPTURING
from .driver import call, entered

_WORD_BYTES = 4
_PORTABLE = 1
_DEVICE_MAP = 2


class CudaHostWords:
    """Words over a whole mapping. `context`: the device's primary one."""

    def __init__(self, memory: mmap.mmap, context: Any) -> None:
        """Tell the driver of the memory.

        Raises:
            Unavailable: it does not take it; says which call and how.
        """
        self._context = context
        self._place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._lock = Lock()
        with CAPTURING, entered(context):
            call("cuMemHostRegister", self._place, len(memory), _PORTABLE | _DEVICE_MAP)
            try:
                # The host's own address on most systems, but not on all.
                self.address = int(call("cuMemHostGetDevicePointer", self._place, 0))
            except BaseException:
                call("cuMemHostUnregister", self._place)
                raise
        self._words: memoryview | None = memoryview(memory).cast("I")

    def load(self, offset: int) -> int:
        """See `HostWords`. One aligned load."""
        return self._open_words()[offset // _WORD_BYTES]

    def store(self, offset: int, value: int) -> None:
        """See `HostWords`. One aligned store: no reader sees half of it."""
        self._open_words()[offset // _WORD_BYTES] = value

    def close(self) -> None:
        """See `HostWords`. May wait for the whole device, as the driver likes."""
        with self._lock:
            words, self._words = self._words, None
        if words is not None:
            words.release()
            with CAPTURING, entered(self._context):
                call("cuMemHostUnregister", self._place)

    def _open_words(self) -> memoryview:
        words = self._words
        if words is None:
            raise ValueError("the words are closed")
        return words

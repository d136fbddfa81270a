"""The words of a CUDA region: two for each slot, in a small file in /dev/shm that both ends map.

The *ready* word is written by the writer's stream and waited for by the reader's, the *acknowledge* word the other way
round, but looked at by the writer's host alone. Hosts read and write them by plain loads and stores, so a wait can be
ended whatever CUDA is busy with. Each word has a line of the cache to itself: one is polled while others are written.

Mapped, unlike other regions, since streams use it: an end that shrinks the file ends the other's process by a bus
error. Both are one domain of trust anyway, as the handle lets either write all of the region; files of other users are
refused.
"""

import mmap
from contextlib import ExitStack
from typing import Self

from ..cuda.device_memory import IpcDevice
from ..errors import InvalidArgument, Unavailable
from .region_transport import FIRST_SLOT
from .regions import SharedRegion, boot_id
from .wire import common_pb2 as pb

WORD = 0xFFFFFFFF
"""What of a number fits a word."""
_LINE_BYTES = 64
_MAX_BYTES = 1 << 20
_FOLLOWS = 0x80000000


class RegionWords:
    """The words of one region, at either end. The host's calls are not made any more once it is closed."""

    def __init__(self, file: SharedRegion, device: IpcDevice, slot_bytes: int) -> None:
        """Takes the file over.

        Raises:
            InvalidArgument: it has shrunk.
            Unavailable: it cannot be mapped, or the device cannot reach it.
        """
        self._file, self._slot_bytes = file, slot_bytes
        with ExitStack() as undo:
            undo.callback(file.close)
            try:
                self._mapped = file.map()
            except OSError as error:
                raise Unavailable(f"the region's words cannot be mapped: {error.strerror}") from error
            undo.callback(self._mapped.close)
            self.on_device = device.register(self._mapped)
            undo.pop_all()

    @classmethod
    def create(cls, device: IpcDevice, size_bytes: int, slot_bytes: int) -> Self:
        """New ones, all zero, for a region of that size.

        Raises:
            Unavailable: there is no shared memory here, or the device cannot reach it.
        """
        if not boot_id():
            raise Unavailable("this host has no boot id")
        num_bytes = _num_bytes(size_bytes, slot_bytes)
        if num_bytes > _MAX_BYTES:
            raise Unavailable("there are more slots than a region may have words for")
        try:
            file = SharedRegion.create(num_bytes)
        except OSError as error:
            raise Unavailable(f"shared memory has no room for the region's words: {error}") from error
        return cls(file, device, slot_bytes)

    @classmethod
    def attach(cls, told: pb.SharedMemoryRegion, device: IpcDevice, size_bytes: int, slot_bytes: int) -> Self:
        """A peer's. The name is untrusted; a size that fits so many slots is wanted.

        Raises:
            InvalidArgument: no peer of ours would tell this.
            Unavailable: they are out of reach; says why.
        """
        num_bytes = _num_bytes(size_bytes, slot_bytes)
        if told.name and told.boot_id != boot_id():
            raise Unavailable("the peer is on another host")
        try:
            file = SharedRegion.attach(told.name, num_bytes, max_bytes=_MAX_BYTES, for_writing=True)
            return cls(file, device, slot_bytes)
        except InvalidArgument as error:
            raise InvalidArgument("the region is not valid") from error
        except OSError as error:
            raise Unavailable(f"the peer's words are out of reach: {error.strerror}") from error

    def describe(self) -> pb.SharedMemoryRegion:
        """How the peer is told of them."""
        return pb.SharedMemoryRegion(name=self._file.name, boot_id=boot_id())

    def ready(self, start: int) -> int:
        """Where the ready word lies of the slot at `start`; what is before the first slot has words of its own."""
        return 2 * _LINE_BYTES * self._index(start)

    def acknowledge(self, start: int) -> int:
        """Where the acknowledge word lies; see `ready`."""
        return self.ready(start) + _LINE_BYTES

    def load(self, offset: int) -> int:
        """The word there, as the host sees it now."""
        return self.on_device.load(offset)

    def has_come(self, offset: int, value: int) -> bool:
        """Whether the word there is `value` or follows it, in cyclic order: as a stream compares."""
        return not (self.load(offset) - value) & _FOLLOWS

    def let_pass(self, offset: int, value: int) -> None:
        """End whatever waits for `value` there."""
        if not self.has_come(offset, value):
            self.on_device.store(offset, value)

    def unlink(self) -> None:
        """The owner's: take the file's name away. Whoever has it keeps it."""
        self._file.unlink()

    def close(self) -> None:
        """Let go of them. No work may use them any more. Harmless when repeated.

        Raises:
            Unavailable: CUDA failed; they are let go of all the same.
        """
        try:
            self.on_device.close()
        finally:
            self._mapped.close()
            self._file.close()

    def _index(self, start: int) -> int:
        return 0 if start < FIRST_SLOT else 1 + (start - FIRST_SLOT) // self._slot_bytes


def _num_bytes(size_bytes: int, slot_bytes: int) -> int:
    """Whole pages, of which both ends on one host have the same."""
    num_slots = (size_bytes - FIRST_SLOT) // slot_bytes
    return -(-2 * _LINE_BYTES * (1 + num_slots) // mmap.PAGESIZE) * mmap.PAGESIZE

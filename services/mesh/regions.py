"""Memory that one process owns and its peers on the same host can read: files in /dev/shm.

Tensors are written and read by position, and never mapped by a peer: one that shrinks its file causes a short read
instead of a bus error, and copying a step's features takes 3 us either way. The owner holds a lock on its file while
it lives, so a file whose lock is free was left behind by a process that died, whatever its pid says.
"""

import fcntl
import mmap
import os
import re
import secrets
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from ..errors import InvalidArgument

DIRECTORY = Path("/dev/shm")  # noqa: S108 (the POSIX shared-memory directory)
MAX_REGION_BYTES = 1 << 30
_NAME = re.compile(r"allroads-[1-9][0-9]{0,9}-[0-9a-f]{16}")


class SharedRegion:
    """A region, at its owner's end or at a peer's. Only the owner takes its name away."""

    def __init__(self, name: str, size_bytes: int, descriptor: int, *, is_owner: bool) -> None:
        self.name, self.size_bytes, self.is_owner = name, size_bytes, is_owner
        self._descriptor: int | None = descriptor

    @classmethod
    def create(cls, size_bytes: int) -> Self:
        """A new region, all zero, with its memory reserved.

        Raises:
            OSError: there is no shared memory here, or too little of it.
        """
        name = f"allroads-{os.getpid()}-{secrets.token_hex(8)}"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(DIRECTORY / name, flags, 0o600)
        region = cls(name, size_bytes, descriptor, is_owner=True)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink == 0:
                raise OSError(f"{name} was removed while it was being made")
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError:
            region.close()
            raise
        return region

    @classmethod
    def attach(
        cls, name: str, size_bytes: int, *, max_bytes: int = MAX_REGION_BYTES, for_writing: bool = False
    ) -> Self:
        """A peer's region, for reading, or for both. Name and size are untrusted; it may have `max_bytes` at most.

        Raises:
            InvalidArgument: name or size cannot be one of ours.
            OSError: the region is out of reach.
        """
        if not _NAME.fullmatch(name) or not 0 < size_bytes <= max_bytes:
            raise InvalidArgument("the shared-memory region is not valid")
        access = os.O_RDWR if for_writing else os.O_RDONLY
        descriptor = os.open(DIRECTORY / name, access | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if not _is_ours(status) or status.st_size != size_bytes:
            os.close(descriptor)
            raise InvalidArgument("the shared-memory region is not valid")
        return cls(name, size_bytes, descriptor, is_owner=False)

    def write(self, offset: int, buffers: Sequence[object]) -> None:
        """Write buffers end to end from `offset` on. The caller keeps within the region."""
        os.pwritev(self._open_descriptor(), buffers, offset)  # type: ignore[arg-type] # any C-contiguous buffer

    def read(self, offset: int, num_bytes: int) -> bytearray:
        """A copy of `num_bytes` bytes.

        Raises:
            InvalidArgument: the owner has shrunk the region.
        """
        data = bytearray(num_bytes)
        if os.preadv(self._open_descriptor(), [data], offset) != num_bytes:
            raise InvalidArgument("the shared-memory region is not valid")
        return data

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers, end to end, with what lies from `offset` on: 1024 of them at most.

        Raises:
            InvalidArgument: the owner has shrunk the region.
        """
        if os.preadv(self._open_descriptor(), buffers, offset) != sum(buffer.nbytes for buffer in buffers):
            raise InvalidArgument("the shared-memory region is not valid")

    def map(self) -> mmap.mmap:
        """The region as memory of this process, to read and write.

        For its owner, and for a peer that trusts the owner with its life: any touch of a region that was shrunk ends
        the process by a bus error.

        Raises:
            InvalidArgument: it has shrunk already.
            OSError: it cannot be mapped.
        """
        descriptor = self._open_descriptor()
        try:
            return mmap.mmap(descriptor, self.size_bytes)
        except ValueError as error:
            raise InvalidArgument("the shared-memory region is not valid") from error

    def unlink(self) -> None:
        """Take the name away; whoever has the region keeps it. Nothing is left behind then, even after SIGKILL."""
        if self.is_owner:
            (DIRECTORY / self.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the memory; the owner takes the name away too. Harmless when repeated."""
        if self._descriptor is not None:
            self.unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"the region {self.name} is closed")
        return self._descriptor


def boot_id() -> str:
    """Id of this boot of this host; empty where the system does not tell."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def remove_stale_regions() -> int:
    """Remove the regions of this user whose owners died, and say how many there were."""
    return sum(_remove_if_stale(path) for path in _candidates())


def _candidates() -> Iterable[Path]:
    with suppress(OSError):
        return [path for path in DIRECTORY.iterdir() if _NAME.fullmatch(path.name)]
    return []


def _remove_if_stale(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not _is_ours(os.fstat(descriptor)):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()

"""The private directory of one running mesh: its sockets and its resolved settings.

Whoever runs a mesh holds a lock on a file in it. A directory whose lock is free belongs to a mesh that
was killed, and the next start removes it.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config import default_run_directory
from ..errors import StartupError

_PREFIX, _UNFINISHED_PREFIX, _LOCK = "allroads-", ".allroads-", "lock"


@contextmanager
def run_directory() -> Iterator[Path]:
    """A new directory that only this user can enter; gone with all it holds when the context ends.

    Raises:
        StartupError: the directory cannot be made.
    """
    base = default_run_directory()
    try:
        _remove_stale(base)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED_PREFIX, dir=base))
    except OSError as error:
        raise StartupError(
            f"cannot make a directory for sockets in {base} ({error.strerror}); "
            "set XDG_RUNTIME_DIR to one you can write to"
        ) from error
    with (unfinished / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only now under its final name: what others find there is always locked while it is in use.
        directory = unfinished.rename(base / (_PREFIX + unfinished.name.removeprefix(_UNFINISHED_PREFIX)))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _remove_stale(base: Path) -> None:
    for directory in base.glob(f"{_PREFIX}*"):
        if not _is_ours(directory):
            continue
        try:
            lock = (directory / _LOCK).open("r+")
        except FileNotFoundError:
            continue
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(directory, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    """A real directory of this user: a shared /tmp holds other people's names too."""
    try:
        return path.is_dir() and not path.is_symlink() and path.lstat().st_uid == os.getuid()
    except OSError:
        return False

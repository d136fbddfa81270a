"""Directories that appear whole or not at all, whatever interrupts the writing."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StartupError


def require_free(out: Path) -> None:
    """See that nothing would be overwritten.

    Raises:
        StartupError: there is something at `out`, other than an empty directory.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise StartupError(f"{out} exists already: choose another place with --out, or remove it", field="out")


@contextmanager
def whole_directory(out: Path) -> Iterator[Path]:
    """A directory to write to, which becomes `out` at the end; where that is not reached, nothing is left.

    Raises:
        StartupError: there is something at `out`, or its parent cannot be written to.
    """
    require_free(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    except OSError as error:
        raise StartupError(f"cannot write to {out}: {error.strerror}; choose another --out", field="out") from error
    try:
        yield partial
        partial.chmod(0o755)  # mkdtemp's own mode lets nobody else read
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)

"""Changes to the file of API keys: each appears as a whole, and two at once do not lose one another."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import yaml
from pydantic import ValidationError

from ...errors import InvalidArgument
from .key_file import KeyFile, KeyRecord, digest_of, new_key, new_salt, read_keys, today, wrong_file


def add_key(
    path: Path,
    name: str,
    *,
    requests_per_minute: int | None = None,
    max_running: int | None = None,
    expires: date | None = None,
) -> str:
    """A new key. The file, made if it is not there, gets its hash alone: nobody can have the key again.

    Raises:
        InvalidArgument: the name is taken or not allowed, or the last day is over.
        StartupError: the file cannot be read or written.
    """
    if expires is not None and expires < today():
        raise InvalidArgument(f"{expires} is over; choose a day to come", field="expires")
    key = new_key()
    with _locked(path):
        before = read_keys(path) if path.exists() else KeyFile(salt=new_salt())
        if any(record.name == name for record in before.keys):
            raise InvalidArgument(f"a key is named {name!r} already; choose another, or revoke it", field="name")
        try:
            record = KeyRecord(
                name=name,
                digest=digest_of(key, before.salt),
                created=today(),
                expires=expires,
                requests_per_minute=requests_per_minute,
                max_running=max_running,
            )
        except ValidationError as error:
            problem = error.errors()[0]
            field = str(problem["loc"][0])
            raise InvalidArgument(f"{field}: {problem['msg']}", field=field) from None
        _write(path, KeyFile(salt=before.salt, keys=(*before.keys, record)))
    return key


def revoke_key(path: Path, name: str) -> None:
    """Take a key out of the file.

    Raises:
        InvalidArgument: none has that name.
        StartupError: the file cannot be read or written.
    """
    with _locked(path):
        before = read_keys(path)
        keys = tuple(record for record in before.keys if record.name != name)
        if len(keys) == len(before.keys):
            raise InvalidArgument(f"no key is named {name!r}; `allroads keys list` shows them", field="name")
        _write(path, KeyFile(salt=before.salt, keys=keys))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process changes the file meanwhile. The lock is the directory's, as the file itself is replaced."""
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise wrong_file(f"cannot open {path.parent}: {error.strerror}; make the directory first") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _write(path: Path, content: KeyFile) -> None:
    text = yaml.safe_dump(content.model_dump(mode="json", exclude_none=True), sort_keys=False)
    temporary = None
    try:
        # A temporary file has mode 0600.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise wrong_file(f"cannot write {path}: {error.strerror}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)

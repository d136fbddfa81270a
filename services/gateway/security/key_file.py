"""The file of API keys: hashes, limits and dates, and never a key.

Keys are 256 random bits, which nobody can guess however fast a guess is. So a fast hash is enough, and every request
can afford it; slow ones such as scrypt are for passwords, which people choose. The salt is the file's own: one key in
two files leaves two hashes, and no table that was made before helps.
"""

import hashlib
import os
import re
import secrets
import stat
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ...errors import StartupError

PREFIX = "ar-"
"""What keys begin with, so that scanners for leaked secrets can tell one."""

_KEY_BYTES, _HASH_BYTES = 32, 32
_MAX_FILE_BYTES = 16 * 1024 * 1024
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_Positive = Annotated[int, Field(gt=0)]
_Hex = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * _HASH_BYTES}}}$")]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("a name has 1 to 63 letters, digits, and characters of ._@-, and begins with one of the first")
    return name


_Name = Annotated[str, AfterValidator(_check_name)]


class KeyRecord(BaseModel):
    """What is known of one key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: _Name
    """Whose it is: letters, digits and `._@-`."""
    digest: _Hex
    """Of the key, by `digest_of`."""
    created: date
    expires: date | None = None
    """The last day on which it is valid, in UTC."""
    requests_per_minute: _Positive | None = None
    """Requests that it may start in a minute."""
    max_running: _Positive | None = None
    """Answers that it may have open at once, those that wait among them."""

    def is_past(self, today: date) -> bool:
        """Whether its last day is over."""
        return self.expires is not None and today > self.expires


class KeyFile(BaseModel):
    """All keys of a gateway, and the salt of their hashes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    salt: _Hex
    keys: tuple[KeyRecord, ...] = ()

    @model_validator(mode="after")
    def _are_distinct(self) -> Self:
        for what in ("name", "digest"):
            if len({getattr(key, what) for key in self.keys}) < len(self.keys):
                raise ValueError(f"two keys have one {what}")
        return self


def new_key() -> str:
    """A key that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def new_salt() -> str:
    """A salt for a new file, in hex."""
    return secrets.token_hex(_HASH_BYTES)


def digest_of(key: str, salt: str) -> str:
    """The hash of a key under a file's salt, in hex: BLAKE2b with the salt as its key (RFC 7693, section 2.9)."""
    data = key.encode(errors="surrogatepass")
    return hashlib.blake2b(data, key=bytes.fromhex(salt), digest_size=_HASH_BYTES).hexdigest()


def today() -> date:
    """The day in UTC, by which keys end."""
    return datetime.now(UTC).date()


def read_keys(path: Path) -> KeyFile:
    """The keys of a file.

    Raises:
        StartupError: it cannot be read, others may write it, or it holds something else.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise wrong_file(
            f"cannot read {path}: {error.strerror}; `allroads keys new NAME --file {path}` makes it"
        ) from None
    if mode & _OTHERS_WRITE:
        raise wrong_file(f"others may write {path}, and so let themselves in; chmod 600 {path}")
    if len(content) > _MAX_FILE_BYTES:
        raise wrong_file(f"{path} has more than {_MAX_FILE_BYTES} bytes")
    # The words of a parser quote what they do not understand, so they stay here.
    try:
        return KeyFile.model_validate(yaml.safe_load(content))
    except (yaml.YAMLError, UnicodeDecodeError):
        raise wrong_file(f"{path} is not YAML") from None
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise wrong_file(f"{path}: {where}: {problem['msg']}") from None


def wrong_file(message: str) -> StartupError:
    """The error for a file that cannot be used."""
    return StartupError(message, field="gateway.keys_path")

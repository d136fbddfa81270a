"""The keys that let requests in, kept in step with their file."""

import asyncio
import hmac
import logging
from pathlib import Path

from ...errors import AllroadsError, Unauthenticated
from ..admission.client_key import sent_key
from .key_file import KeyFile, KeyRecord, digest_of, read_keys, today

logger = logging.getLogger(__name__)

_POLL_S = 1.0

_Stamp = tuple[int, int, int] | None


class KeyRing:
    """Knows each request by its key, or refuses it. Belongs to one event loop.

    A key is looked up by its hash, which nobody can steer without the salt, so that the time it takes tells nothing.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            StartupError: it cannot be used; says what to do.
        """
        self._path = path
        self._stamp = _stamp_of(path)
        self._take(read_keys(path))

    def __len__(self) -> int:
        return len(self._by_digest)

    def name(self, authorization: str | None, api_key: str | None) -> str:
        """The name of whose key came.

        Args:
            authorization: the header `Authorization`, of which `Bearer KEY` is understood.
            api_key: the header `x-api-key`, for clients that send no other.

        Raises:
            Unauthenticated: no key came, or one that is not valid.
        """
        key = sent_key(authorization, api_key)
        if not key:
            raise Unauthenticated("an API key is needed: send `Authorization: Bearer KEY`")
        digest = digest_of(key, self._salt)
        record = self._by_digest.get(digest)
        if record is None or not hmac.compare_digest(record.digest, digest):
            raise Unauthenticated("the API key is not known here, or was revoked")
        if record.is_past(today()):
            raise Unauthenticated(f"the API key was valid until {record.expires}")
        return record.name

    def record(self, name: str) -> KeyRecord | None:
        """What is known of a key by its name; None once it was revoked."""
        return self._by_name.get(name)

    async def run(self) -> None:
        """Look every second whether the file has changed, until cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            # A disk that hangs must not hold up requests.
            stamp = await asyncio.to_thread(_stamp_of, self._path)
            if stamp != self._stamp:
                await self._reread(stamp)

    async def _reread(self, stamp: _Stamp) -> None:
        """Take the file's keys. One that cannot be used changes nothing, so that a slip locks nobody out."""
        self._stamp = stamp
        try:
            self._take(await asyncio.to_thread(read_keys, self._path))
        except AllroadsError as error:
            logger.error("the keys stay as they were: %s", error.message)
        else:
            logger.info("read %d keys", len(self))

    def _take(self, file: KeyFile) -> None:
        self._salt = file.salt
        self._by_digest = {record.digest: record for record in file.keys}
        self._by_name = {record.name: record for record in file.keys}


def _stamp_of(path: Path) -> _Stamp:
    """What changes with the file; None where it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_mode

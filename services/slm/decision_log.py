"""Decisions and what came of them, one JSON object a line, in files that rotate (docs/audit.md).

Without the texts unless they are asked for. Writing is another thread's business: what that cannot take in time is
left out and counted, and a full disk ends the log only.
"""

import json
import logging
import os
import queue
import time
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from threading import Thread
from typing import Any

from ..errors import StartupError

logger = logging.getLogger(__name__)

_MAX_QUEUED = 20_000
_REPORT_S = 60.0
_CLOSE_S = 5.0


class _PrivateFiles(RotatingFileHandler):
    """Files that only their owner can read: token ids are what users wrote."""

    failed = False

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return TextIOWrapper(open(descriptor, "ab"), encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (named by logging)
        if not self.failed:
            self.failed = True
            logger.exception("decisions are not recorded any more")


class DecisionLog:
    """Appends lines; `write` never waits. `write` belongs to one thread."""

    def __init__(self, path: Path, *, max_bytes: int, num_files: int) -> None:
        """Open the file.

        Args:
            path: of the newest file; older ones are `path.1`, `path.2`, ...
            max_bytes: size at which a file is put away.
            num_files: files to keep, the newest included.

        Raises:
            StartupError: it cannot be written.
        """
        try:
            self._files = _PrivateFiles(path, maxBytes=max_bytes, backupCount=max(0, num_files - 1))
        except OSError as error:
            raise StartupError(
                f"slm.decisions_path: cannot write {path}: {error}", field="slm.decisions_path"
            ) from error
        # Of this run of the service; requests of an earlier one have another.
        self._run = os.urandom(4).hex()
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(_MAX_QUEUED)
        self._num_lost = 0
        self._reported_s = 0.0
        self._thread = Thread(target=self._drain, name="decision-log", daemon=True)
        self._thread.start()

    def write(self, number: int, **fields: Any) -> None:
        """Add a line about request `number`."""
        line = {"v": 1, "t": round(time.time(), 3), "run": self._run, "request": number, **fields}
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._num_lost += 1
            if time.monotonic() - self._reported_s > _REPORT_S:
                self._reported_s = time.monotonic()
                logger.warning("%d decisions were not recorded: the disk is too slow", self._num_lost)

    def close(self) -> None:
        """Write what is queued, as far as the disk takes it in time, and let go of the file."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            logger.warning("the disk does not take the record of decisions; the end of it is lost")
            return
        with suppress(OSError, ValueError):  # a disk that failed fails again
            self._files.close()

    def _drain(self) -> None:
        while (line := self._queue.get()) is not None:
            if not self._files.failed:
                text = json.dumps(line, separators=(",", ":"), allow_nan=False)
                self._files.handle(logging.LogRecord("decision", logging.INFO, "", 0, text, None, None))

"""One child process: in its own session, its output read line by line, its end told in words."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Self

from .console import ERROR_PREFIX, one_line
from .logs import OnLine
from .services import Service

_MAX_LINE_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_LAST_WORDS_TIMEOUT_S = 1.0


class Child:
    """A running service. Its session leader's end is its end; what it left behind in the session is killed."""

    def __init__(
        self, service: Service, process: asyncio.subprocess.Process, output: asyncio.StreamReader, on_line: OnLine
    ) -> None:
        self.service = service
        self.pid = process.pid
        self._process = process
        self._on_line = on_line
        self._last_line = self._last_error = ""
        self._pump = asyncio.create_task(self._read(output), name=f"output of {service.name}")
        self._ended = asyncio.create_task(self._wait(), name=f"end of {service.name}")

    @classmethod
    async def start(cls, service: Service, on_line: OnLine) -> Self:
        """Start the service's command. Must be called in the main thread, whose death the child watches."""
        # A pipe of our own: asyncio's would report the end only once every descendant has closed it.
        read_end, write_end = os.pipe()
        output = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_end, "rb")
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *service.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                env=service.environment,
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        return cls(service, process, output, on_line)

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone and its output read."""
        return self._ended.done()

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    async def ended(self) -> None:
        """Wait for the end. Any number of tasks may wait."""
        await asyncio.shield(self._ended)

    def how_it_ended(self) -> str:
        """Exit code or signal, and the last thing that the service said."""
        code = self._process.returncode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        words = self._last_error or self._last_line
        return f"{how}: {one_line(words.removeprefix(ERROR_PREFIX))}" if words else how

    def terminate(self) -> None:
        """Ask the service to stop."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """End the whole session at once."""
        if not self.has_ended:
            self._kill_session()

    async def _wait(self) -> None:
        await self._process.wait()
        self._kill_session()
        await asyncio.wait({self._pump}, timeout=_LAST_WORDS_TIMEOUT_S)
        self._pump.cancel()

    def _kill_session(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _read(self, output: asyncio.StreamReader) -> None:
        async for line in _lines(output):
            self._last_line = line or self._last_line
            if line.startswith(ERROR_PREFIX):
                self._last_error = line
            self._on_line(self.service.name, line)


async def _lines(output: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines as they come, each as a terminal would leave it; one longer than the limit arrives in parts."""
    rest = b""
    while chunk := await output.read(_READ_BYTES):
        *complete, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            complete, rest = [*complete, rest], b""
        for line in complete:
            yield _decode(line)
    if rest:
        yield _decode(rest)


def _decode(line: bytes) -> str:
    """What a progress bar has written over and over counts once."""
    return line.decode(errors="replace").rstrip().rpartition("\r")[2]

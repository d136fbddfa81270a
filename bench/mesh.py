"""A real mesh under measurement: `allroads up` as a user starts it, and a lean client."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import httpx

_READY_TIMEOUT_S = 180.0
MODEL = "allroads"


@dataclass(frozen=True)
class Mesh:
    """A mesh that is ready."""

    client: httpx.AsyncClient
    pid: int
    seconds_to_ready: float
    _log: BinaryIO

    def read_log(self) -> str:
        """What it has said so far."""
        return _read(self._log)

    async def chat(self, question: str, routing: dict[str, Any], **body: Any) -> dict[str, Any]:
        """One whole answer, greedy unless told otherwise."""
        reply = await self.client.post("/v1/chat/completions", json=chat_body(question, routing, **body))
        reply.raise_for_status()
        content: dict[str, Any] = reply.json()
        return content

    async def chat_streamed(self, question: str, routing: dict[str, Any]) -> int:
        """One streamed answer; how many tokens it had."""
        body = chat_body(question, routing, stream=True, stream_options={"include_usage": True})
        num_tokens = 0
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if '"usage":{' in line:
                    num_tokens = int(line.split('"completion_tokens":')[1].split(",")[0])
        return num_tokens


def chat_body(question: str, routing: dict[str, Any], **body: Any) -> dict[str, Any]:
    """The body of a greedy request."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 256,
        "routing": routing,
        **body,
    }


@contextlib.asynccontextmanager
async def running_mesh(*options: str, **environment: str) -> AsyncIterator[Mesh]:
    """Start `allroads up` on the embedded pair, on free ports, and stop it at the end.

    `options` and `environment` are added to the command's own; `--ready-timeout` among them counts here, too.

    Raises:
        RuntimeError: it did not become ready; its log is in the message.
    """
    port, grpc_port = _free_port(), _free_port()
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        arguments = ["up", "--port", str(port), "--grpc-port", str(grpc_port), *options]
        process = start_allroads(arguments, os.environ | environment, log)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, limits=limits) as client:
            try:
                if not await _is_ready(client, process, _timeout_s(options)):
                    raise RuntimeError(f"the mesh did not become ready:\n{_read(log)}")
                yield Mesh(client, process.pid, time.monotonic() - started, log)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)


def start_allroads(arguments: list[str], environment: dict[str, str], log: BinaryIO) -> "subprocess.Popen[bytes]":
    """The command, with what it prints in a log."""
    command = [sys.executable, "-m", "allroads", *arguments]
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


async def _is_ready(client: httpx.AsyncClient, process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            if (await client.get("/ready")).status_code == 200:
                return True
        await asyncio.sleep(0.1)
    return False


def _timeout_s(options: tuple[str, ...]) -> float:
    name = "--ready-timeout"
    return float(options[options.index(name) + 1]) if name in options else _READY_TIMEOUT_S


def _read(log: BinaryIO) -> str:
    # Not by seeking: the mesh writes where the file stands.
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

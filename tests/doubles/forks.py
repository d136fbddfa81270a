"""Services and commands as forks of a program that has imported what they need, with the face of `subprocess.Popen`.

What a fork is spared is the time of its imports; it runs the same entry with the same arguments, environment
and signals as `python -m allroads`, in a process of its own.
"""

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from .fork_server import MAX_ORDER_BYTES, READY, Order

_READY_TIMEOUT_S = 100


class Fork:
    """A process that has been forked. As of a `Popen`, its exit code is negative for a signal."""

    def __init__(self, line: socket.socket, arguments: Sequence[str]) -> None:
        self._line = line
        self.args = list(arguments)
        self.pid = int(self._read())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after that many seconds.
        """
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                self.returncode = int(self._read())
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def abandon(self) -> None:
        """Wait for it no longer, as if the tests had died: its keeper kills it."""
        self._line.close()

    def _read(self) -> bytes:
        told = self._line.recv(64)
        assert told, "the keeper of a fork is gone"
        return told


class ForkServer:
    """The program that forks."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = Path(__file__).with_name("fork_server.py")
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(program), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={
                    key: value for key, value in os.environ.items() if not key.startswith(("ALLROADS_", "FORCE_COLOR"))
                }
                | {"OMP_NUM_THREADS": "1"},
            )
        self._orders.settimeout(_READY_TIMEOUT_S)
        self.is_ready = self._orders.recv(len(READY)) == READY
        """False where it has said on stderr why it cannot fork."""

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: BinaryIO | None = None,
        stdout: BinaryIO,
        stderr: BinaryIO,
    ) -> Fork:
        """Run `python -m module` with this environment; without `stdin` there is nothing to read.

        Of what Python reads as it starts only `PYTHONPATH` counts; the rest is as it was for the program.
        """
        order = json.dumps(asdict(Order(module, list(arguments), dict(environment), os.getcwd()))).encode()
        assert len(order) < MAX_ORDER_BYTES
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(os.devnull, "rb") as nothing:
            streams = [stream.fileno() for stream in (stdin or nothing, stdout, stderr)]
            socket.send_fds(self._orders, [order], [theirs.fileno(), *streams])
        return Fork(ours, [sys.executable, "-m", module, *arguments])

    def close(self) -> None:
        """End the program, and with it nothing that it has forked."""
        self._orders.close()
        self._process.wait(10)


@functools.cache
def fork_server() -> ForkServer | None:
    """The one of this test run; None where a process with these libraries cannot be forked safely."""
    if sys.platform != "linux":
        return None
    server = ForkServer()
    atexit.register(server.close)
    return server if server.is_ready else None

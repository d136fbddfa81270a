"""`allroads up` as an operator runs it: a process, what it prints, what it logs."""

import os
import queue
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from allroads.mesh.regions import DIRECTORY

from .commands import COMMAND, environment, run
from .ends import TIMEOUT_S


class Mesh:
    """A running `allroads up`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[str] = []
        """Lines of stderr that were waited for."""
        self.url = self.grpc_address = ""
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read_log, daemon=True).start()

    def until_ready(self) -> None:
        """Wait for the endpoint."""
        assert self.process.stdout is not None
        printed = ""
        for line in self.process.stdout:
            printed += line
            if line.startswith("Ctrl-C stops it"):
                break
        else:
            raise AssertionError("the mesh ended before it was ready:\n" + self.rest_of_log())
        (self.url,) = re.findall(r"REST +(\S+)", printed)
        (self.grpc_address,) = re.findall(r"gRPC +(\S+)", printed)

    def until_logged(self, words: str) -> None:
        """Wait for a line of the log that has not been read yet."""
        while words not in (line := self._lines.get(timeout=TIMEOUT_S)):
            assert line, f"the log ended without {words!r}:\n{''.join(self.log)}"
            self.log.append(line)
        self.log.append(line)

    def rest_of_log(self) -> str:
        """The whole log, once the process has ended."""
        while line := self._lines.get(timeout=TIMEOUT_S):
            self.log.append(line)
        return "".join(self.log)

    def services(self) -> dict[str, int]:
        """Process ids by name of the service."""
        children = [child for child in psutil.Process(self.process.pid).children() if len(child.cmdline()) > 4]
        return {child.cmdline()[4]: child.pid for child in children}

    def ask(self) -> subprocess.CompletedProcess[str]:
        # At threshold 0 the router judges every token and turns it down: all four services have a part in it.
        return run("chat", "--url", self.url, "--max-tokens", "8", "--policy", "r2r", "--threshold", "0", "Hello")

    def regions(self, pids: list[int]) -> list[str]:
        """Shared memory of these processes."""
        return [name for name in os.listdir(DIRECTORY) for pid in pids if name.startswith(f"allroads-{pid}-")]

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put("")


@contextmanager
def up(runtime_directory: Path, *options: str, **variables: str) -> Iterator[Mesh]:
    """`allroads up` on free ports, killed at the end if it still runs then."""
    command = [*COMMAND, "up", "--port=0", "--grpc-port=0", *options]
    env = environment(XDG_RUNTIME_DIR=str(runtime_directory), OMP_NUM_THREADS="1", **variables)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield Mesh(process)
        finally:
            process.kill()

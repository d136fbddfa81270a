"""`allroads up` with the real services over a tiny random pair, as an operator sees it."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import psutil
import pytest
from allroads.mesh.regions import DIRECTORY

from tests.doubles.tiny_pair import write_tiny_pair

from .commands import COMMAND, environment, run
from .ends import TIMEOUT_S, has_ended, wait_for_ends


class Mesh:
    """A running `allroads up` whose endpoint has been printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        printed = ""
        for line in process.stdout:
            printed += line
            if line.startswith("Ctrl-C stops it"):
                break
        (self.url,) = re.findall(r"REST +(\S+)", printed) or [""]

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


@contextmanager
def up(models: Path, runtime_directory: Path) -> Iterator[Mesh]:
    options = [f"--{name}={models / name}" for name in ("slm", "llm", "router")]
    command = [*COMMAND, "up", *options, "--port=0", "--grpc-port=0"]
    variables = environment(XDG_RUNTIME_DIR=str(runtime_directory), ALLROADS_GATEWAY__HOME_TIMEOUT_S=str(TIMEOUT_S))
    with (
        TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=variables) as process,
    ):
        try:
            mesh = Mesh(process)
            log.seek(0)
            assert mesh.url, log.read()
            yield mesh
        finally:
            process.kill()


@pytest.mark.timeout(300)  # it loads torch four times, on a machine that may be busy
def test_a_mesh_serves_survives_a_death_and_leaves_nothing(tmp_path: Path, socket_directory: Path) -> None:
    write_tiny_pair(tmp_path)
    with up(tmp_path, socket_directory) as mesh:
        first = mesh.ask()
        assert first.returncode == 0, first.stderr
        assert first.stderr.startswith("8 tokens: 0 by the SLM, 8 by the LLM (100.0%)")

        before = mesh.services()
        assert before.keys() == {"slm", "llm", "router", "gateway"}
        os.kill(before["slm"], signal.SIGKILL)
        wait_for_ends([before["slm"]])
        # The gateway waits for the home to come back.
        assert mesh.ask().stdout == first.stdout

        pids = [*before.values(), *mesh.services().values()]
        mesh.process.send_signal(signal.SIGINT)
        assert mesh.process.wait(TIMEOUT_S) == 0
    assert all(has_ended(pid) for pid in pids)
    assert os.listdir(socket_directory) == []
    assert mesh.regions(pids) == []

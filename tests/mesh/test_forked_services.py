"""A fork is to its test what a new process would be: arguments, input, output, signals, exit code, its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest

from ..doubles.forks import Fork, ForkServer, fork_server

TELL = """
import os, sys, threading
print(__name__, sys.argv, sys.path[:2], os.getcwd(), dict(sorted(os.environ.items())), threading.active_count())
print("to stderr", file=sys.stderr, flush=True)
print(sys.stdin.read())
sys.exit(3)
"""
WAIT = "print('up', flush=True)\nimport signal\nsignal.pause()\n"


@pytest.fixture
def server() -> ForkServer:
    found = fork_server()
    if found is None and sys.platform != "linux":
        pytest.skip("processes are forked on Linux only")
    assert found is not None, "the fork server has said why on stderr; everything starts slowly"
    return found


@pytest.fixture
def output() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Both ends of a pipe."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reading, os.fdopen(write, "wb") as writing:
        yield reading, writing


@pytest.fixture
def waiting(server: ForkServer, output: tuple[BinaryIO, BinaryIO], tmp_path: Path) -> Fork:
    """One that is up and does nothing."""
    (tmp_path / "waits.py").write_text(WAIT)
    fork = server.start("waits", [], {"PYTHONPATH": str(tmp_path)}, stdout=output[1], stderr=output[1])
    assert output[0].readline() == b"up\n"
    return fork


def test_it_runs_as_python_m_would(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "tells.py").write_text(TELL)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OF_THE_TEST": "1"}
    arguments = ["serve", "slm", "--config", "a b"]
    (tmp_path / "input").write_text("a question")
    with ExitStack() as stack:
        stdin = stack.enter_context((tmp_path / "input").open("rb"))
        stdout, stderr = (stack.enter_context((tmp_path / name).open("wb")) for name in ("stdout", "stderr"))
        fork = server.start("tells", arguments, environment, stdin=stdin, stdout=stdout, stderr=stderr)
        assert fork.wait(60) == 3
    command = [sys.executable, "-m", "tells", *arguments]
    process = subprocess.run(command, input="a question", capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 3
    assert (tmp_path / "stdout").read_text() == process.stdout
    assert (tmp_path / "stderr").read_text() == process.stderr == "to stderr\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_it(number: signal.Signals, waiting: Fork) -> None:
    assert waiting.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.01)
    waiting.send_signal(number)
    assert waiting.wait(60) == -number
    assert (waiting.poll(), waiting.returncode) == (-number, -number)
    waiting.kill()  # of what has ended does nothing
    assert not psutil.pid_exists(waiting.pid)


def test_it_does_not_outlive_who_waits_for_it(waiting: Fork) -> None:
    process = psutil.Process(waiting.pid)
    waiting.abandon()
    process.wait(60)

"""A supervisor as a process of its own: stopped by signals, and killed."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from .ends import TIMEOUT_S, has_ended, wait_for_ends

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the death of a parent is told by Linux only")


@contextmanager
def supervisor(socket_directory: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A supervisor whose mesh is ready, and the process ids of its children."""
    command = [sys.executable, "-m", f"{__package__}.mesh_of_scripts", str(socket_directory)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any(line == "ready\n" for line in process.stdout), "the mesh ended before it was ready"
            children = [child.pid for child in psutil.Process(process.pid).children()]
            assert len(children) == 4
            yield process, children
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_everything_and_leaves_nothing(number: signal.Signals, socket_directory: Path) -> None:
    with supervisor(socket_directory) as (process, children):
        process.send_signal(number)
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
    assert re.findall(r"stopped \w+", output) == ["stopped gateway", "stopped slm", "stopped router", "stopped llm"]
    assert all(has_ended(pid) for pid in children)
    assert not list(socket_directory.iterdir())


def test_children_do_not_outlive_a_supervisor_that_is_killed(socket_directory: Path) -> None:
    with supervisor(socket_directory) as (process, children):
        process.kill()
        wait_for_ends(children)


def test_a_child_whose_parent_is_dead_already_leaves() -> None:
    code = "from allroads.cli.parent import die_with_parent; die_with_parent(1 << 30)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 1

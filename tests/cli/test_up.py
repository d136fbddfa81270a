"""`allroads up` with the real services over a tiny random pair, as an operator sees it."""

import os
import signal
from pathlib import Path

import pytest

from tests.doubles.tiny_pair import write_tiny_pair

from .ends import TIMEOUT_S, has_ended, wait_for_ends
from .running_mesh import up


@pytest.mark.timeout(300)  # it loads torch four times, on a machine that may be busy
def test_a_mesh_serves_survives_a_death_and_leaves_nothing(tmp_path: Path, socket_directory: Path) -> None:
    write_tiny_pair(tmp_path)
    models = [f"--{name}={tmp_path / name}" for name in ("slm", "llm", "router")]
    with up(socket_directory, *models, ALLROADS_GATEWAY__HOME_TIMEOUT_S=str(TIMEOUT_S)) as mesh:
        mesh.until_ready()
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

"""`allroads up` with the real services over a tiny random pair, as an operator sees it."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.doubles.tiny_pair import write_tiny_pair

from .ends import TIMEOUT_S, has_ended, wait_for_ends
from .running_mesh import up

ROOT = Path(__file__).parents[2]


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


def ask_for_ensemble(url: str) -> dict[str, Any]:
    """An answer of the policy that draws who writes, from a seed, and long enough for each model to be drawn."""
    body = {
        "model": "embedded-three",
        "messages": [{"role": "user", "content": "Aya has 37 apples and buys 58 more. How many has Aya now?"}],
        "max_tokens": 60,
        "seed": 1,
        "temperature": 0,
    }
    answer = httpx.post(f"{url}/chat/completions", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


@pytest.mark.timeout(300)
def test_three_models_serve_together_and_the_middle_one_comes_back(socket_directory: Path) -> None:
    config = ROOT / "configs" / "embedded-three.yaml"
    with up(socket_directory, f"--config={config}", ALLROADS_SLM__PEER_TIMEOUT_S=str(TIMEOUT_S)) as mesh:
        mesh.until_ready()
        first = ask_for_ensemble(mesh.url)
        assert all(first["routing"]["tokens"][name] > 0 for name in ("slm", "mlm", "llm"))
        assert not first["routing"]["degraded"]

        before = mesh.services()
        assert before.keys() == {"slm", "mlm", "llm", "router", "gateway"}
        os.kill(before["mlm"], signal.SIGKILL)
        mesh.until_logged("mlm is ready again")
        again = ask_for_ensemble(mesh.url)
        assert again["choices"] == first["choices"]
        assert again["routing"]["tokens"] == first["routing"]["tokens"]

        pids = [*before.values(), *mesh.services().values()]
        mesh.process.send_signal(signal.SIGTERM)
        assert mesh.process.wait(TIMEOUT_S) == 0
        log = mesh.rest_of_log()
    stops = re.findall(r'"stopping (\w+)"', log)
    assert stops == ["gateway", "slm", "router", "mlm", "llm"]
    assert all(has_ended(pid) for pid in pids)
    assert os.listdir(socket_directory) == []
    assert mesh.regions(pids) == []

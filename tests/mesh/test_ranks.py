"""A service whose model is cut over two processes: it answers as ever, and its processes end together."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest
from allroads.config import load_settings

from ..doubles.forks import fork_server
from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.processes import MeshProcesses
from ..doubles.ranks import needs_ranks
from ..doubles.tier_probe import free_tier_tokens
from ..oracle import Oracle

PROMPTS = [[5, 9, 77, 31], [300, 4, 8, 15, 16, 23, 42] * 6, [10, 20, 30]]
EOS = frozenset({2})

pytestmark = needs_ranks


def _mesh(pair: Path, directory: Path) -> MeshProcesses:
    overrides = {name: {"path": str(pair / name)} for name in ("slm", "llm", "router")}
    return MeshProcesses(
        load_settings(overrides=overrides | {"llm": overrides["llm"] | {"tensor_parallel": 2}}), directory
    )


async def _answers(address: str) -> list[Reply]:
    async with HomeClient(address) as client:
        return await client.answer(*(request(prompt, "entropy", max_tokens=24, threshold=2.0) for prompt in PROMPTS))


def test_a_mesh_answers_as_the_oracle_does_and_its_large_models_processes_stop(tiny_pair: Path, tmp_path: Path) -> None:
    """The service starts its second process itself."""
    mesh = _mesh(tiny_pair, tmp_path)
    with mesh.running("llm", "router", "slm"):
        replies = asyncio.run(_answers(mesh.address("slm")))
        oracle = Oracle(tiny_pair)
        wanted = oracle.answer(PROMPTS, oracle.entropy(2.0), max_tokens=24, stop_token_ids=EOS)
        assert [(reply.token_ids, reply.tiers) for reply in replies] == [(one.token_ids, one.tiers) for one in wanted]
        assert {tier for reply in replies for tier in reply.tiers} == {0, 1}
        (other,) = psutil.Process(mesh.processes["llm"].pid).children()
    assert not other.is_running()
    assert mesh.log("llm").count("stopped") == 2


def test_a_service_ends_with_its_other_process(tiny_pair: Path, tmp_path: Path) -> None:
    """Even while it waits for it."""
    mesh = _mesh(tiny_pair, tmp_path)
    mesh.start("llm")
    service = mesh.processes["llm"]
    while not (others := psutil.Process(service.pid).children()):
        assert service.poll() is None, mesh.log("llm")
    others[0].kill()
    assert service.wait(30) == 1
    assert "process 1 of llm ended (killed by SIGKILL)" in mesh.log("llm")


@pytest.mark.parametrize("ending", ["asked", "killed"])
async def test_processes_that_torchrun_has_started_find_each_other_and_end_together(
    ending: str, tiny_pair: Path, tmp_path: Path
) -> None:
    """With the environment that torchrun gives them."""
    mesh = _mesh(tiny_pair, tmp_path)
    server = fork_server()
    assert server is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = []
    for rank in ("0", "1"):
        environment = os.environ | {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none",
        }  # fmt: skip
        with (tmp_path / f"rank{rank}.log").open("ab") as log:
            arguments = ["serve", "llm", "--config", str(mesh.config)]
            ranks.append(server.start("allroads", arguments, environment, stdout=log, stderr=log))
    try:
        assert await asyncio.wait_for(free_tier_tokens(mesh.address("llm")), 60) > 0
        if ending == "asked":
            for process in ranks:
                process.send_signal(signal.SIGTERM)
            assert [process.wait(30) for process in ranks] == [0, 0]
        else:
            ranks[0].kill()
            assert ranks[1].wait(30) == 1
            assert "the first process of this model is gone" in (tmp_path / "rank1.log").read_text()
    finally:
        for process in ranks:
            process.kill()
            process.wait(10)

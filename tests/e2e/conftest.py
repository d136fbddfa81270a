"""All four services over a tiny random pair, each started as an operator does, shared by the tests of this folder."""

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from allroads.config import load_settings
from openai import AsyncOpenAI

from ..doubles.processes import MeshProcesses
from ..doubles.tiny_pair import write_tiny_pair

SERVICES = ("llm", "router", "slm", "gateway")
WINDOW = 1024
"""Tokens that the large model's KV pool holds: less than either model's own window of 2,048."""


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    write_tiny_pair(directory)
    return directory


@pytest.fixture(scope="session")
def mesh(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    port, grpc_port = free_ports(2)
    settings = load_settings(
        overrides={
            "slm": {"path": str(pair / "slm")},
            "llm": {"path": str(pair / "llm"), "num_kv_tokens": WINDOW},
            "router": {"path": str(pair / "router")},
            "gateway": {"port": port, "grpc_port": grpc_port, "home_timeout_s": 90.0},
        }
    )
    processes = MeshProcesses(settings, tmp_path_factory.mktemp("m"), forks=False)
    with processes.running(*SERVICES):
        yield processes


@pytest.fixture
async def http(mesh: MeshProcesses) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{mesh.settings.gateway.port}"
    async with httpx.AsyncClient(base_url=url, timeout=90) as client:
        yield client


@pytest.fixture
async def openai(mesh: MeshProcesses) -> AsyncIterator[AsyncOpenAI]:
    url = f"http://127.0.0.1:{mesh.settings.gateway.port}/v1"
    async with AsyncOpenAI(base_url=url, api_key="unused", timeout=90, max_retries=0) as client:
        yield client

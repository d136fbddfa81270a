"""A mesh of slm, llm and router over a tiny random pair, shared by the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from allroads.config import load_settings

from ..doubles.processes import MeshProcesses
from ..doubles.tiny_pair import write_tiny_pair


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    write_tiny_pair(directory)
    return directory


@pytest.fixture(scope="session")
def mesh(tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    settings = load_settings(overrides={name: {"path": str(tiny_pair / name)} for name in ("slm", "llm", "router")})
    processes = MeshProcesses(settings, tmp_path_factory.mktemp("m"))
    with processes.running("llm", "router", "slm"):
        yield processes

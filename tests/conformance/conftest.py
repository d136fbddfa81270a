"""A mesh over a tiny random pair that has wrong plug-ins installed, and the reference for it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from allroads.config import MeshSettings, load_settings
from allroads.conformance.slow_mesh import SlowMesh
from allroads.policies.registry import PolicyRegistry

from ..doubles import processes
from ..doubles.processes import MeshProcesses
from ..doubles.tiny_pair import write_tiny_pair

WRONG = Path(__file__).parent / "wrong"


@pytest.fixture(scope="session")
def tiny_settings(tmp_path_factory: pytest.TempPathFactory) -> MeshSettings:
    directory = tmp_path_factory.mktemp("pair")
    write_tiny_pair(directory)
    given: dict[str, dict[str, object]] = {name: {"path": str(directory / name)} for name in ("slm", "llm", "router")}
    given["router"]["scorers"] = {name: str(directory / name) for name in ("citer", "co-llm")}
    return load_settings(overrides=given)


@pytest.fixture(scope="session")
def mesh(tiny_settings: MeshSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "PLUGIN", os.pathsep.join((str(processes.PLUGIN), str(WRONG))))
        with MeshProcesses(tiny_settings, tmp_path_factory.mktemp("c")).running("llm", "router", "slm") as running:
            yield running


@pytest.fixture(scope="session")
def policies() -> Iterator[PolicyRegistry]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(WRONG))
        yield PolicyRegistry.load()


@pytest.fixture(scope="session")
def reference(tiny_settings: MeshSettings, policies: PolicyRegistry) -> SlowMesh:
    return SlowMesh(tiny_settings, policies)

"""A whole `allroads up` with scripted services: run directory, endpoint, and nothing left behind."""

import asyncio
import fcntl
import os
import re
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from allroads.cli import run_mesh, services
from allroads.cli.endpoint import describe_endpoint
from allroads.cli.run_directory import run_directory
from allroads.cli.services import Service, child_environment, mesh_services, run_of
from allroads.config import MeshSettings, load_settings
from allroads.errors import StartupError
from allroads.mesh import regions

from .mesh_of_scripts import scripted_services

Started = Callable[[MeshSettings, Path], None]


def _with_scripted_services(monkeypatch: pytest.MonkeyPatch, on_start: Started) -> None:
    def scripted(settings: MeshSettings, config: Path) -> list[Service]:
        on_start(settings, config)
        return scripted_services(config.parent, {})

    monkeypatch.setattr(run_mesh, "mesh_services", scripted)


async def test_up_prints_the_endpoint_and_leaves_nothing(
    mesh_directory: Path,
    runtime_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[MeshSettings] = []

    def on_start(settings: MeshSettings, config: Path) -> None:
        seen.append(settings)
        assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(config.stat().st_mode) == 0o600
        assert load_settings(config) == settings
        assert settings.slm.address == f"unix:{config.parent}/slm.sock"

    def stop_once_ready(settings: MeshSettings, seconds: float) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return describe_endpoint(settings, seconds)

    _with_scripted_services(monkeypatch, on_start)
    monkeypatch.setattr(run_mesh, "describe_endpoint", stop_once_ready)
    # What a killed mesh of earlier leaves behind.
    (runtime_directory / "allroads-old").mkdir()
    (runtime_directory / "allroads-old" / "lock").touch()
    region = regions.SharedRegion.create(16)
    monkeypatch.setattr(region, "is_owner", False)
    region.close()

    await run_mesh.run_mesh(load_settings(mesh_directory / "mesh.yaml"), ready_timeout_s=60)

    out, err = capsys.readouterr()
    port, grpc_port = seen[0].gateway.port, seen[0].gateway.grpc_port
    assert f"REST    http://127.0.0.1:{port}/v1\n" in out
    assert f"gRPC    127.0.0.1:{grpc_port}\n" in out
    assert "model   allroads\n" in out
    assert "policy  r2r\n" in out
    assert f"curl http://127.0.0.1:{port}/v1/chat/completions" in out
    assert re.search(r"^slm     \| serving$", err, re.MULTILINE)
    assert re.search(r"^up      \| time=\S+Z level=info service=up .*stopping gateway", err, re.MULTILINE)
    assert os.listdir(runtime_directory) == []
    assert not (regions.DIRECTORY / region.name).exists()


def test_a_run_directory_in_use_is_kept(runtime_directory: Path) -> None:
    with run_directory() as first, run_directory() as second:
        assert first != second
        assert first.is_dir()
    assert list(runtime_directory.iterdir()) == []


def test_directories_that_are_not_ours_are_kept(runtime_directory: Path) -> None:
    (runtime_directory / "elsewhere").mkdir()
    (runtime_directory / "elsewhere" / "lock").touch()
    (runtime_directory / "allroads-link").symlink_to(runtime_directory / "elsewhere")
    (runtime_directory / "allroads-without-lock").mkdir()
    with run_directory():
        pass
    assert {path.name for path in runtime_directory.iterdir()} == {
        "elsewhere",
        "allroads-link",
        "allroads-without-lock",
    }
    assert (runtime_directory / "elsewhere" / "lock").exists()


def test_no_place_for_a_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    with pytest.raises(StartupError, match="set XDG_RUNTIME_DIR"), run_directory():
        pass


def test_the_lock_of_a_run_directory_is_held(runtime_directory: Path) -> None:
    with run_directory() as directory, (directory / "lock").open("r+") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_services_of_a_mesh(mesh_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLROADS_GATEWAY__PORT", "9000")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    overrides = {"gateway": {"host": "::", "grpc_port": 9001}, "llm": {"num_threads": 3}}
    settings = load_settings(mesh_directory / "mesh.yaml", overrides).with_addresses(mesh_directory)
    llm, _, _, gateway = mesh_services(settings, mesh_directory / "mesh.yaml")
    assert llm.environment["OMP_NUM_THREADS"] == "3"
    assert llm.environment["MALLOC_ARENA_MAX"] == "7"
    assert not any(key.startswith("ALLROADS_") for key in child_environment(1))
    assert gateway.address == "[::1]:9001"
    assert llm.address == f"unix:{mesh_directory}/llm.sock"
    assert llm.command[1:5] == ("-m", "allroads", "serve", "llm")


def test_services_of_a_mesh_of_three(mesh_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "usable_cores", lambda: range(10))
    overrides = {"middle": {"mlm": {"path": "embedded:slm", "num_threads": 2}, "l": {"path": "embedded:slm"}}}
    settings = load_settings(mesh_directory / "mesh.yaml", overrides).with_addresses(mesh_directory)
    mesh = mesh_services(settings, mesh_directory / "mesh.yaml")
    assert [service.name for service in mesh] == ["llm", "l", "mlm", "router", "slm", "gateway"]
    mlm = mesh[2]
    assert mlm.command[1:5] == ("-m", "allroads", "serve", "mlm")
    assert mlm.address == f"unix:{mesh_directory}/mlm.sock"
    assert mlm.health_name == mesh[0].health_name == "allroads.v1.TierService"
    assert mlm.environment["OMP_NUM_THREADS"] == "2"
    cores = {service.name: re.findall(r"--core (\d)", " ".join(service.command)) for service in mesh}
    assert cores == {
        "slm": ["0"], "mlm": ["1", "2"], "l": ["3"], "llm": ["4"], "router": ["5"], "gateway": ["6", "7", "8", "9"],
    }  # fmt: skip


async def test_what_runs_a_larger_tier_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, str]]] = []

    def module_of(name: str, package: str) -> SimpleNamespace:
        async def run(settings: MeshSettings, stop: asyncio.Event, **more: str) -> None:
            told.append((name, more))

        return SimpleNamespace(run=run)

    monkeypatch.setattr(services, "importlib", SimpleNamespace(import_module=module_of))
    for name in ("slm", "mlm", "llm", "router", "gateway"):
        await run_of(name)(MeshSettings(), asyncio.Event())
    assert told == [
        ("...slm.service", {}),
        ("...llm.service", {"name": "mlm"}),
        ("...llm.service", {"name": "llm"}),
        ("...router.service", {}),
        ("...gateway.service", {}),
    ]


def test_services_in_one_process_use_as_many_threads_as_one_of_them_wants(
    mesh_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "TQDM_DISABLE": "0"})
    overrides = {"middle": {"mlm": {"path": "embedded:slm", "num_threads": 3}}}
    prepared = run_mesh._prepared(load_settings(mesh_directory / "mesh.yaml", overrides))
    parts = (prepared.slm, prepared.middle["mlm"], prepared.llm, prepared.router)
    assert [part.num_threads for part in parts] == [3, 3, 3, 3]
    assert [os.environ[key] for key in ("OMP_NUM_THREADS", "TQDM_DISABLE", "HF_HUB_OFFLINE")] == ["3", "0", "1"]


async def test_nothing_starts_when_the_set_up_is_wrong(
    mesh_directory: Path, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.Event()
    _with_scripted_services(monkeypatch, lambda settings, config: started.set())
    (mesh_directory / "router" / "router.safetensors").unlink()
    with pytest.raises(StartupError, match=r"router.safetensors is missing"):
        await run_mesh.run_mesh(load_settings(mesh_directory / "mesh.yaml"), ready_timeout_s=60)
    assert not started.is_set()
    assert os.listdir(runtime_directory) == []

"""Scripted services as tasks of one loop: order, failures, services that do not come up or do not leave."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from allroads.cli import single_process
from allroads.cli.services import Service
from allroads.cli.single_process import SingleProcess
from allroads.cli.stop import StopRequest
from allroads.config import MeshSettings
from allroads.errors import CheckpointError, Internal, StartupError, Unavailable
from allroads.mesh.server import ServiceServer

from .mesh_of_scripts import NAMES, scripted_services
from .scripted_service import HEALTH_NAME

Script = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""What a service does while it serves, until the event."""


async def never_ready(stop: asyncio.Event) -> None:
    await stop.wait()


class Mesh:
    """A single process of scripted services; those without a script serve until they are stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, *, ready_timeout_s: float = 60) -> None:
        self.scripts: dict[str, Script] = {}
        self.stop = StopRequest()
        self.ready = asyncio.Event()
        self.events: list[str] = []
        self._services: dict[str, Service] = {service.name: service for service in scripted_services(directory, {})}
        monkeypatch.setattr(single_process, "run_of", lambda name: lambda _, stop: self._live(name, stop))
        self._process = SingleProcess(
            MeshSettings(grace_s=0),
            list(self._services.values()),
            ready_timeout_s=ready_timeout_s,
            on_ready=self.ready.set,
        )

    async def run(self) -> None:
        await self._process.run(self.stop)

    async def _live(self, name: str, stop: asyncio.Event) -> None:
        self.events.append(f"{name} starts")
        server = ServiceServer([HEALTH_NAME], max_message_bytes=1 << 20)
        await server.start(self._services[name].address)
        try:
            if name in self.scripts:
                await server.set_ready(self.scripts[name] is not never_ready)
                await self.scripts[name](stop)
            else:
                await server.set_ready(True)
                await stop.wait()
        finally:
            await server.stop(0)
        self.events.append(f"{name} stops")


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch, socket_directory: Path) -> Mesh:
    return Mesh(monkeypatch, socket_directory)


STARTS = [f"{name} starts" for name in NAMES]
STOPS = [f"{name} stops" for name in reversed(NAMES)]


async def test_it_starts_callees_first_and_stops_callers_first(mesh: Mesh) -> None:
    running = asyncio.create_task(mesh.run())
    await mesh.ready.wait()
    mesh.stop.ask()
    await running
    assert mesh.events == STARTS + STOPS
    assert not mesh.stop.insisted.is_set()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Internal("the decode loop failed"), "slm failed: the decode loop failed; in one process all"),
        (ZeroDivisionError("by zero"), r"slm failed: ZeroDivisionError\('by zero'\)"),
        (None, "slm failed: it ended without being asked to"),
    ],
)
async def test_a_service_that_fails_takes_all_with_it(mesh: Mesh, error: Exception | None, words: str) -> None:
    async def fail(stop: asyncio.Event) -> None:
        await mesh.ready.wait()
        if error is not None:
            raise error

    mesh.scripts["slm"] = fail
    with pytest.raises(Unavailable, match=words):
        await mesh.run()
    assert [event for event in mesh.events[len(STARTS) :] if event != "slm stops"] == [
        "gateway stops",
        "router stops",
        "llm stops",
    ]


async def test_a_service_that_refuses_to_start_is_told_with_its_reason(mesh: Mesh) -> None:
    async def refuse(stop: asyncio.Event) -> None:
        raise CheckpointError("the checkpoint is damaged", field="router.path")

    mesh.scripts["router"] = refuse
    with pytest.raises(StartupError, match=r"^router could not start: the checkpoint is damaged$") as caught:
        await mesh.run()
    assert caught.value.field == "router.path"
    assert mesh.events == ["llm starts", "router starts", "llm stops"]
    assert not mesh.ready.is_set()


async def test_a_service_that_is_never_ready_ends_all(monkeypatch: pytest.MonkeyPatch, socket_directory: Path) -> None:
    mesh = Mesh(monkeypatch, socket_directory, ready_timeout_s=0.5)
    mesh.scripts["llm"] = never_ready
    with pytest.raises(Unavailable, match=r"llm was not ready within 0.5 s.*--ready-timeout"):
        await mesh.run()
    assert mesh.events == ["llm starts", "llm stops"]


async def test_it_can_be_stopped_while_it_starts(mesh: Mesh) -> None:
    async def stop_all(stop: asyncio.Event) -> None:
        mesh.stop.ask()
        await stop.wait()

    mesh.scripts["router"] = stop_all
    await mesh.run()
    assert mesh.events == ["llm starts", "router starts", "router stops", "llm stops"]
    assert not mesh.ready.is_set()


async def test_a_service_that_does_not_leave_is_left_behind(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_process, "_STOP_MARGIN_S", 0.1)
    leave = asyncio.Event()

    async def stay(stop: asyncio.Event) -> None:
        await leave.wait()

    mesh.scripts["gateway"] = stay
    running = asyncio.create_task(mesh.run())
    await mesh.ready.wait()
    mesh.stop.ask()
    await running
    assert mesh.stop.insisted.is_set()
    assert "gateway stops" not in mesh.events
    leave.set()

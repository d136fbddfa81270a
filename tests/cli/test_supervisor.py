"""Real child processes under a supervisor in this process: start, restart, giving up, stopping."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from allroads.cli.restarts import RestartPolicy
from allroads.cli.services import Service
from allroads.cli.stop import StopRequest
from allroads.cli.supervisor import Supervisor
from allroads.errors import StartupError, Unavailable

from .ends import has_ended
from .mesh_of_scripts import scripted_service, scripted_services

QUICK = RestartPolicy(max_deaths=3, window_s=600, first_pause_s=0.01, longest_pause_s=0.02)


class Mesh:
    """A supervisor with what it told, and events to wait for."""

    def __init__(self, services: Sequence[Service], *, ready_timeout_s: float = 60, grace_s: float = 5) -> None:
        self.lines: list[tuple[str, str]] = []
        self.ready = asyncio.Event()
        self.stop = StopRequest()
        self._news = asyncio.Condition()
        self._supervisor = Supervisor(
            services,
            ready_timeout_s=ready_timeout_s,
            grace_s=grace_s,
            on_line=self._on_line,
            on_ready=self.ready.set,
            restarts=QUICK,
        )

    async def run(self) -> None:
        await self._supervisor.run(self.stop)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.run())
        ready = asyncio.create_task(self.ready.wait())
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        try:
            assert self.ready.is_set(), "the mesh ended before it was ready"
            yield
        finally:
            ready.cancel()
            self.stop.ask()
            await task

    async def seen(self, name: str, line: str, times: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: self.lines.count((name, line)) >= times)

    def _on_line(self, name: str, line: str) -> None:
        self.lines.append((name, line))
        self._tell = asyncio.ensure_future(self._notify())

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def pids(caplog: pytest.LogCaptureFixture) -> dict[str, int]:
    """The last process of each service, in the order of their first start."""
    return {
        str(record.args[0]): int(str(record.args[1]))
        for record in caplog.records
        if record.msg.startswith("starting") and isinstance(record.args, tuple)
    }


async def test_starts_callees_first_and_stops_callers_first(
    socket_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = Mesh(scripted_services(socket_directory, {}, ("llm", "mlm", "router", "slm", "gateway")))
    async with mesh.running():
        assert list(pids(caplog)) == ["llm", "mlm", "router", "slm", "gateway"]
    stopped = [line for _, line in mesh.lines if line.startswith("stopped")]
    assert stopped == [f"stopped {name}" for name in ("gateway", "slm", "router", "mlm", "llm")]
    assert all(has_ended(pid) for pid in pids(caplog).values())
    assert os.listdir(socket_directory) == []


async def test_a_killed_child_comes_back(socket_directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    mesh = Mesh(scripted_services(socket_directory, {}))
    async with mesh.running():
        before = pids(caplog)
        os.kill(before["slm"], signal.SIGKILL)
        await mesh.seen("slm", "serving", times=2)
        after = pids(caplog)
        assert after["slm"] != before["slm"]
        assert {**after, "slm": 0} == {**before, "slm": 0}
    assert "slm died (killed by SIGKILL: serving)" in caplog.text
    assert all(has_ended(pid) for pid in (*before.values(), *after.values()))


async def test_what_a_dead_child_left_in_its_session_is_killed(
    socket_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = socket_directory / "helper"
    mesh = Mesh([scripted_service(socket_directory, "llm", "leave-a-child", str(mark))])
    async with mesh.running():
        os.kill(pids(caplog)["llm"], signal.SIGKILL)
        await mesh.seen("llm", "serving", times=2)
    assert has_ended(int(mark.read_text()))


async def test_gives_up_on_a_service_that_keeps_dying(socket_directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    behaviour = ("refuse-later", str(socket_directory / "mark"))
    mesh = Mesh(scripted_services(socket_directory, {"router": behaviour}))
    task = asyncio.create_task(mesh.run())
    await mesh.ready.wait()
    os.kill(pids(caplog)["router"], signal.SIGKILL)
    with pytest.raises(Unavailable, match=r"router died 3 times within 600 s.*the checkpoint is damaged"):
        await task
    assert all(has_ended(pid) for pid in pids(caplog).values())


async def test_a_child_that_refuses_to_start_ends_the_mesh_with_its_reason(
    socket_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = Mesh(scripted_services(socket_directory, {"llm": ("refuse",)}))
    with pytest.raises(StartupError, match=r"^llm could not start: exit code 2: the checkpoint is damaged; fetch it"):
        await mesh.run()
    assert not mesh.ready.is_set()
    assert all(has_ended(pid) for pid in pids(caplog).values())


async def test_a_child_that_is_never_ready_ends_the_mesh(
    socket_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = Mesh([scripted_service(socket_directory, "slm", "hang")], ready_timeout_s=0.5, grace_s=0)
    mesh.stop.insisted.set()
    with pytest.raises(Unavailable, match=r"slm was not ready within 0.5 s.*--ready-timeout"):
        await mesh.run()
    assert has_ended(pids(caplog)["slm"])


async def test_asked_twice_a_deaf_child_is_killed_at_once(
    socket_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = Mesh([scripted_service(socket_directory, "slm", "hang")], grace_s=1000)
    task = asyncio.create_task(mesh.run())
    await mesh.seen("slm", "hanging", times=1)
    mesh.stop.ask()
    mesh.stop.ask()
    await task
    assert "killing slm" in caplog.text
    assert has_ended(pids(caplog)["slm"])

"""A mesh for as long as a command needs one: started as `allroads up` does, stopped when the work is done."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ..config import MeshSettings, save_settings, service_names
from ..errors import Cancelled
from ..mesh.regions import remove_stale_regions
from .console import stderr
from .log_view import LogView
from .logs import always, set_up_logging
from .preflight import check_mesh
from .run_directory import run_directory
from .services import mesh_services
from .stop import StopRequest, stop_on_signals
from .supervisor import Supervisor

_GRACE_S = 1.0
"""Nobody waits for an answer when the work is over."""

Done = TypeVar("Done")


class MeshFor:
    """A mesh that is being started, as its user sees it."""

    def __init__(self, settings: MeshSettings) -> None:
        self.settings = settings
        """With all addresses and ports."""
        self._ready = asyncio.Event()

    def tell_ready(self) -> None:
        """All services are ready."""
        self._ready.set()

    async def until_ready(self) -> None:
        """Wait until all services are ready."""
        await self._ready.wait()


async def with_mesh(
    settings: MeshSettings,
    work: Callable[[MeshFor], Awaitable[Done]],
    *,
    speaker: str,
    ready_timeout_s: float,
    without: Collection[str] = (),
) -> Done:
    """Run a mesh while some work goes on, which begins at once and waits itself until the mesh is ready.

    Args:
        settings: of the mesh. Its gateway gets free ports, and it no more log and grace than it needs.
        work: what it is for.
        speaker: the command's name in logs.
        ready_timeout_s: how long services may take until they are ready.
        without: services that are not started.

    Raises:
        StartupError: the set-up is wrong.
        Unavailable: a service failed.
        Cancelled: a signal asked to stop.
    """
    settings = check_mesh(_for_a_while(settings))
    view = LogView(stderr(), service_names(settings))
    set_up_logging(always(speaker), settings.log_level, view.show)
    remove_stale_regions()
    with stop_on_signals() as stop, run_directory() as directory:
        settings = settings.with_addresses(directory)
        mesh = MeshFor(settings)
        services = mesh_services(settings, _saved(settings, directory))
        supervisor = Supervisor(
            [service for service in services if service.name not in without],
            ready_timeout_s=ready_timeout_s,
            grace_s=_GRACE_S,
            on_line=view.show,
            on_ready=mesh.tell_ready,
        )
        return await _while_it_runs(supervisor, stop, asyncio.ensure_future(work(mesh)))


async def _while_it_runs(supervisor: Supervisor, stop: StopRequest, work: "asyncio.Future[Done]") -> Done:
    """What came of the work; the mesh is stopped after it, and it with the mesh."""
    mesh = asyncio.create_task(supervisor.run(stop))
    either: set[asyncio.Future[Any]] = {mesh, work}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.asked.set()
        if not work.done():
            work.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({work})
        await mesh
    if work.cancelled():
        raise Cancelled("stopped before the work was done")
    return work.result()


def _for_a_while(settings: MeshSettings) -> MeshSettings:
    """Any free ports, since nothing else listens there, and no more grace and log than it needs."""
    gateway = settings.gateway.model_copy(update={"port": 0, "grpc_port": 0})
    return settings.model_copy(update={"gateway": gateway, "grace_s": _GRACE_S, "log_level": "warning"})


def _saved(settings: MeshSettings, directory: Path) -> Path:
    path = directory / "mesh.yaml"
    save_settings(settings, path)
    return path

"""What `allroads policy check` does: starts the services of a mesh as `allroads up` does, and runs the suite on it."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..config import MeshSettings, save_settings, service_names
from ..conformance.slow_mesh import SlowMesh
from ..conformance.suite import CHECKS, Result, run_suite
from ..errors import Cancelled
from ..mesh.regions import remove_stale_regions
from ..policies.registry import PolicyRegistry
from .console import stderr
from .log_view import LogView
from .logs import always, set_up_logging
from .preflight import check_mesh
from .run_directory import run_directory
from .services import mesh_services
from .stop import StopRequest, stop_on_signals
from .supervisor import Supervisor

_GRACE_S = 1.0
"""Nobody waits for an answer when the suite is over."""


async def check_on_mesh(
    settings: MeshSettings,
    name: str,
    parameters: Mapping[str, Sequence[float]],
    *,
    num_prompts: int,
    timeout_s: float,
    ready_timeout_s: float,
) -> list[Result]:
    """Run the suite on a mesh of these settings, without its gateway.

    Raises:
        InvalidArgument: there is no such policy, or its parameters are wrong.
        StartupError: the set-up is wrong.
        Unavailable: a service failed.
        Cancelled: a signal asked to stop.
    """
    policies = PolicyRegistry.load()
    policies.get(name)
    settings = check_mesh(_for_check(settings))
    view = LogView(stderr(), service_names(settings))
    set_up_logging(always("check"), settings.log_level, view.show)
    remove_stale_regions()
    ready = asyncio.Event()

    async def run_checks() -> list[Result]:
        reference = await asyncio.to_thread(SlowMesh, settings, policies)
        await ready.wait()
        results: list[Result] = []
        with stderr().status("") as status:
            status.update(f"checking {name}")
            async for result in run_suite(
                settings,
                name,
                parameters,
                policies=policies,
                reference=reference,
                num_prompts=num_prompts,
                timeout_s=timeout_s,
            ):
                results.append(result)
                status.update(f"checking {name}: {len(results)} of {len(CHECKS)}")
        return results

    with stop_on_signals() as stop, run_directory() as directory:
        settings = settings.with_addresses(directory)
        supervisor = Supervisor(
            [service for service in mesh_services(settings, _saved(settings, directory)) if service.name != "gateway"],
            ready_timeout_s=ready_timeout_s,
            grace_s=_GRACE_S,
            on_line=view.show,
            on_ready=ready.set,
        )
        return await _while_it_runs(supervisor, stop, asyncio.create_task(run_checks()))


async def _while_it_runs(
    supervisor: Supervisor, stop: StopRequest, checks: "asyncio.Task[list[Result]]"
) -> list[Result]:
    """The checks' results; the mesh is stopped after them, and they with the mesh."""
    mesh = asyncio.create_task(supervisor.run(stop))
    try:
        await asyncio.wait({mesh, checks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.asked.set()
        if not checks.done():
            checks.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({checks})
        await mesh
    if checks.cancelled():
        raise Cancelled("stopped before all checks were done")
    return checks.result()


def _for_check(settings: MeshSettings) -> MeshSettings:
    """Any free ports, since nothing listens there, and no more grace and log than it needs."""
    gateway = settings.gateway.model_copy(update={"port": 0, "grpc_port": 0})
    return settings.model_copy(update={"gateway": gateway, "grace_s": _GRACE_S, "log_level": "warning"})


def _saved(settings: MeshSettings, directory: Path) -> Path:
    path = directory / "mesh.yaml"
    save_settings(settings, path)
    return path

"""What `allroads up` does once the settings are known: check, start, keep, stop, leave nothing behind."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ..config import MeshSettings, save_settings, service_names
from ..mesh.regions import remove_stale_regions
from .console import stderr, stdout
from .endpoint import describe_endpoint
from .gpu_checks import tell_of_turns
from .leave import leave_if_insisted
from .log_view import LogView
from .logs import always, set_up_logging
from .preflight import check_mesh
from .run_directory import run_directory
from .seats import check_ranks
from .services import child_environment, mesh_services
from .single_process import SingleProcess
from .speakers import speaker_of
from .stop import stop_on_signals
from .supervisor import Supervisor


async def run_mesh(settings: MeshSettings, *, ready_timeout_s: float, single_process: bool = False) -> None:
    """Run a whole mesh until a signal asks to stop. In one process this may end the process itself.

    Raises:
        StartupError: the set-up is wrong.
        Unavailable: a service failed, and goes on failing.
    """
    began_s = time.monotonic()
    check_ranks(settings, single_process=single_process)
    settings = check_mesh(settings)
    view = LogView(stderr(), service_names(settings))
    set_up_logging(speaker_of if single_process else always("up"), settings.log_level, view.show)

    def on_ready() -> None:
        stdout().print(describe_endpoint(settings, time.monotonic() - began_s))

    with (
        stop_on_signals() as stop,
        leave_if_insisted(stop) if single_process else nullcontext(),
        _no_regions_left(),
        run_directory() as directory,
    ):
        settings = settings.with_addresses(directory)
        services = mesh_services(settings, _saved(settings, directory))
        if single_process:
            mesh = SingleProcess(_prepared(settings), services, ready_timeout_s=ready_timeout_s, on_ready=on_ready)
            await mesh.run(stop)
            return
        tell_of_turns(settings)
        supervisor = Supervisor(
            services,
            ready_timeout_s=ready_timeout_s,
            grace_s=settings.grace_s,
            on_line=view.show,
            on_ready=on_ready,
        )
        await supervisor.run(stop)


@contextmanager
def _no_regions_left() -> Iterator[None]:
    """Shared memory of services that were killed, earlier ones and ours, is freed."""
    remove_stale_regions()
    try:
        yield
    finally:
        remove_stale_regions()


def _saved(settings: MeshSettings, directory: Path) -> Path:
    path = directory / "mesh.yaml"
    save_settings(settings, path)
    return path


def _prepared(settings: MeshSettings) -> MeshSettings:
    """Make this process a home for all services, before any of them is imported.

    torch counts its threads once for a process: every service takes as many as the one that wants most.
    """
    num_threads = max(part.num_threads for part in settings.internal.values())
    os.environ.update(child_environment(num_threads))
    return settings.with_internal({name: {"num_threads": num_threads} for name in settings.internal})

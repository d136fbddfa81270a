"""What `allroads up` does once the settings are known: check, start, keep, stop, leave nothing behind."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config import MeshSettings, save_settings
from ..mesh.regions import remove_stale_regions
from .console import stderr, stdout
from .endpoint import describe_endpoint
from .log_view import LogView
from .logs import CallbackHandler, set_up_logging
from .preflight import check_mesh
from .run_directory import run_directory
from .services import mesh_services
from .stop import stop_on_signals
from .supervisor import Supervisor


async def run_mesh(settings: MeshSettings, *, ready_timeout_s: float) -> None:
    """Run a whole mesh until a signal asks to stop.

    Raises:
        StartupError: the set-up is wrong.
        Unavailable: a service failed, and goes on failing.
    """
    began_s = time.monotonic()
    settings = check_mesh(settings)
    view = LogView(stderr())
    set_up_logging("up", settings.log_level, CallbackHandler(lambda line: view.show("up", line)))
    with _no_regions_left(), run_directory() as directory, stop_on_signals() as stop:
        settings = settings.with_addresses(directory)
        supervisor = Supervisor(
            mesh_services(settings, _saved(settings, directory)),
            ready_timeout_s=ready_timeout_s,
            grace_s=settings.grace_s,
            on_line=view.show,
            on_ready=lambda: stdout().print(describe_endpoint(settings, time.monotonic() - began_s)),
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

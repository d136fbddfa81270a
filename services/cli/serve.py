"""`allroads serve`: one service of a mesh in this process."""

import asyncio
import logging
from typing import Annotated

import typer

from ..config import MeshSettings, ServiceName
from ..errors import StartupError
from .cores import pin
from .logs import always, set_up_logging
from .options import Config, resolve_settings
from .parent import die_with_parent
from .services import Run, run_of
from .stop import stop_on_signals

logger = logging.getLogger(__name__)

_ADDRESSES_NEEDED = {
    "slm": ("slm", "llm", "router"),
    "llm": ("llm",),
    "router": ("router",),
    "gateway": ("slm",),
}
"""The addresses that each service listens on or calls."""


def serve(
    service: Annotated[ServiceName, typer.Argument(help="Which service of the mesh.", show_default=False)],
    config: Config = None,
    parent_pid: Annotated[int | None, typer.Option(hidden=True)] = None,
    core: Annotated[list[int] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run one service of a mesh until SIGTERM or Ctrl-C.

    For meshes whose services are started one by one: in containers, or on several machines. All services
    read the same file, in which each has an address.
    """
    if parent_pid is not None:
        die_with_parent(parent_pid)
    if core:
        pin(core)
    settings = resolve_settings(config)
    _check_addresses(service, settings)
    set_up_logging(always(service), settings.log_level)
    asyncio.run(_run_until_signal(run_of(service), settings))
    logger.info("stopped")


async def _run_until_signal(run: Run, settings: MeshSettings) -> None:
    with stop_on_signals() as stop:
        await run(settings, stop.asked)


def _check_addresses(service: str, settings: MeshSettings) -> None:
    for name in _ADDRESSES_NEEDED[service]:
        if not getattr(settings, name).address:
            raise StartupError(
                f"{name}.address is not set, and the {service} service needs it: set it in the configuration "
                f"or with ALLROADS_{name.upper()}__ADDRESS",
                field=f"{name}.address",
            )

"""`allroads serve`: one service of a mesh in this process."""

import asyncio
import importlib
import logging
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from ..config import MeshSettings, ServiceName
from ..errors import StartupError
from .logs import set_up_logging
from .options import Config, resolve_settings
from .parent import die_with_parent

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
) -> None:
    """Run one service of a mesh until SIGTERM or Ctrl-C.

    For meshes whose services are started one by one: in containers, or on several machines. All services
    read the same file, in which each has an address.
    """
    if parent_pid is not None:
        die_with_parent(parent_pid)
    settings = resolve_settings(config)
    _check_addresses(service, settings)
    set_up_logging(service, settings.log_level)
    asyncio.run(_run_of(service)(settings))
    logger.info("stopped")


def _check_addresses(service: str, settings: MeshSettings) -> None:
    for name in _ADDRESSES_NEEDED[service]:
        if not getattr(settings, name).address:
            raise StartupError(
                f"{name}.address is not set, and the {service} service needs it: set it in the configuration "
                f"or with ALLROADS_{name.upper()}__ADDRESS",
                field=f"{name}.address",
            )


def _run_of(service: str) -> Callable[[MeshSettings], Coroutine[Any, Any, None]]:
    """The service's `run`. Imported by name and late: a service loads only what it needs itself."""
    run: Callable[[MeshSettings], Coroutine[Any, Any, None]] = importlib.import_module(
        f"...{service}.service", __name__
    ).run
    return run

"""`allroads serve`: one service of a mesh in this process."""

import asyncio
import logging
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ..config import MeshSettings, service_names
from ..errors import StartupError
from .cores import pin
from .logs import always, set_up_logging
from .options import Config, resolve_settings
from .parent import die_with_parent
from .ranks import follow, lead
from .seats import Seat, seat_of
from .services import run_of
from .stop import stop_on_signals

logger = logging.getLogger(__name__)


def serve(
    service: Annotated[
        str,
        typer.Argument(
            metavar="slm|llm|router|gateway|NAME",
            help="Which service of the mesh; NAME is that of a model between slm and llm.",
            show_default=False,
        ),
    ],
    config: Config = None,
    parent_pid: Annotated[int | None, typer.Option(hidden=True)] = None,
    core: Annotated[list[int] | None, typer.Option(hidden=True)] = None,
    rank: Annotated[int | None, typer.Option(hidden=True)] = None,
    meeting: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run one service of a mesh until SIGTERM or Ctrl-C.

    For meshes whose services are started one by one: in containers, or on several machines. All services
    read the same file, in which each has an address. A service with `tensor_parallel` starts its other
    processes itself, unless torchrun has started them.
    """
    if parent_pid is not None:
        # A process that follows another has nothing to finish without it.
        die_with_parent(parent_pid, signal.SIGTERM if rank is None else signal.SIGKILL)
    if core:
        pin(core)
    settings = resolve_settings(config)
    _check_service(service, settings)
    _check_addresses(service, settings)
    seat = seat_of(service, settings, rank, meeting)
    set_up_logging(always(service + (seat.speaker if seat else "")), settings.log_level)
    if seat is not None and seat.place.rank > 0:
        follow(service, settings, seat.place)
        return
    asyncio.run(_run_until_signal(service, settings, config, seat))
    logger.info("stopped")


async def _run_until_signal(service: str, settings: MeshSettings, config: Path | None, seat: Seat | None) -> None:
    run = run_of(service) if seat is None else None
    with stop_on_signals() as stop:
        if run is not None:
            await run(settings, stop.asked)
        elif seat is not None:
            await lead(service, settings, config, seat, stop)


def _check_service(service: str, settings: MeshSettings) -> None:
    names = service_names(settings)
    if service not in names:
        raise StartupError(f"there is no service {service!r} in this mesh; there are {', '.join(names)}")


def _check_addresses(service: str, settings: MeshSettings) -> None:
    for name in _addresses_needed(service, settings):
        if not settings.internal[name].address:
            key = f"{settings.key_of(name)}.address"
            raise StartupError(
                f"{key} is not set, and the {service} service needs it: set it in the configuration "
                f"or with ALLROADS_{key.upper().replace('.', '__')}",
                field=key,
            )


def _addresses_needed(service: str, settings: MeshSettings) -> Iterable[str]:
    """The internal services whose addresses a service listens on or calls."""
    if service == "slm":
        return settings.internal
    return ("slm",) if service == "gateway" else (service,)

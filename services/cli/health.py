"""`allroads health`: is a service of a mesh ready? For the health checks of containers."""

import asyncio
from typing import Annotated

import typer

from .console import stdout
from .options import Config, resolve_settings


def health(
    service: Annotated[
        str, typer.Argument(metavar="slm|llm|router|gateway|NAME", help="Which service of the mesh.")
    ] = "gateway",
    config: Config = None,
    live: Annotated[bool, typer.Option("--live", help="Whether it runs at all, ready or not.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for an answer.")] = 3.0,
) -> None:
    """Ask a service whether requests may come to it. Exit code 0 says yes, 1 no.

    Reads the same file as `allroads serve`, in which the service has an address.
    """
    from .health_check import ask_health, service_of  # noqa: PLC0415 (gRPC is slow to import)

    settings = resolve_settings(config)
    asked = service_of(service, settings, config)
    asyncio.run(ask_health(asked, "" if live else asked.health_name, timeout))
    stdout().print("live" if live else "ready")

"""`allroads up`: a whole mesh from one command."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from .options import Config, resolve_settings

_MESH, _ENDPOINT = "Mesh", "Endpoint"


def up(
    config: Config = None,
    slm: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Small model, in the Hugging Face layout.", rich_help_panel=_MESH)
    ] = None,
    llm: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Large model; shares the tokenizer.", rich_help_panel=_MESH)
    ] = None,
    router: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Router made for this pair: a directory of ours, or a .pt file.", rich_help_panel=_MESH
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Routing policy for requests that name none.", rich_help_panel=_MESH)
    ] = None,
    host: Annotated[
        str | None, typer.Option(show_default="127.0.0.1", help="Address to listen on.", rich_help_panel=_ENDPOINT)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, show_default="8000", help="Port of the REST API, 0 for any.", rich_help_panel=_ENDPOINT
        ),
    ] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, show_default="8001", help="Port of the gRPC API, 0 for any.", rich_help_panel=_ENDPOINT
        ),
    ] = None,
    ready_timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long services may take until they are ready.")
    ] = 120.0,
    single_process: Annotated[
        bool, typer.Option("--single-process", help="All services in this process; nothing restarts one that fails.")
    ] = False,
) -> None:
    """Serve a pair of models, or more than two: start the services, restart what dies, stop them on Ctrl-C.

    Options win over environment variables, and these over the file. Everything is checked before anything
    starts: files, tokenizers, ports. A second Ctrl-C ends the services at once.
    """
    settings = resolve_settings(
        config,
        slm={"path": slm, "policy": policy},
        llm={"path": llm},
        router={"path": router},
        gateway={"host": host, "port": port, "grpc_port": grpc_port},
    )
    # gRPC reads it when it is imported; it tells of every connection that a stopping service closes.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Late, so that no other command pays for gRPC.
    from .run_mesh import run_mesh  # noqa: PLC0415

    asyncio.run(run_mesh(settings, ready_timeout_s=ready_timeout, single_process=single_process))

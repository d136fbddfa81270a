"""The gateway's process: REST and gRPC over one client of the small model's service."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..config import MeshSettings
from ..errors import StartupError
from ..mesh.channels import open_channel
from ..mesh.server import ServiceServer, first_of
from ..mesh.wire import gateway_pb2_grpc
from .admission.limiter import Limiter
from .gateway import Gateway
from .grpc_api import SERVICE_NAME, GatewayServicer
from .home import HomeClient
from .metrics import Metrics
from .openai.app import make_app
from .openai.server import RestServer, bind
from .text.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

_FAREWELL_S = 1.0
"""For the last errors to reach clients, after the grace is over."""


@dataclass(frozen=True)
class RunningGateway:
    """A gateway that listens."""

    gateway: Gateway
    rest_port: int
    grpc_port: int
    failure: "asyncio.Task[None]"
    """Ends only when a part of the gateway has failed, with its error."""


async def run(settings: MeshSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then stop gracefully.

    Raises:
        StartupError: files, configuration or ports are wrong; says what to do.
    """
    async with serving(settings) as running:
        await first_of(stop, running.failure)


@asynccontextmanager
async def serving(settings: MeshSettings) -> AsyncIterator[RunningGateway]:
    """Listen while the context is open; ready once the home is there. The end of it is a graceful stop."""
    options = settings.gateway
    if not settings.slm.address:
        raise StartupError("slm.address is not set: the gateway must know its home", field="slm.address")
    tokenizer = load_tokenizer(settings.slm.path)
    limiter = Limiter(
        max_running=options.max_running, max_waiting=options.max_waiting, queue_timeout_s=options.queue_timeout_s
    )
    changed = asyncio.Event()
    listener = bind(options.host, options.port)
    rest_port: int = listener.getsockname()[1]
    channel = open_channel(settings.slm.address, settings.max_message_bytes)
    server = ServiceServer([SERVICE_NAME], max_message_bytes=settings.max_message_bytes)
    tasks: list[asyncio.Task[None]] = []
    try:
        home = HomeClient(
            channel,
            tokenizer_hash=tokenizer.vocabulary.hash,
            home_timeout_s=options.home_timeout_s,
            piece_interval_s=options.piece_interval_s,
            max_message_bytes=settings.max_message_bytes,
            on_change=changed.set,
        )
        gateway = Gateway(settings, tokenizer, home, limiter, Metrics(settings.model_name, limiter, home))
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(GatewayServicer(gateway), server.grpc)
        host = f"[{options.host}]" if ":" in options.host else options.host
        await server.start(f"{host}:{options.grpc_port}")
        rest = RestServer(make_app(gateway), listener, grace_s=settings.grace_s + _FAREWELL_S)
        rest_task = asyncio.create_task(rest.run(), name="REST")
        home_task = asyncio.create_task(home.run(), name="stream to slm")
        ready_task = asyncio.create_task(_report_readiness(gateway, server, changed), name="readiness")
        tasks = [rest_task, home_task, ready_task]
        logger.info("REST on http://%s:%d", host, rest_port)
        logger.info("gRPC on %s:%d", host, server.bound_port)
        failure = asyncio.create_task(_first_failure(tasks), name="failure")
        try:
            yield RunningGateway(gateway, rest_port, server.bound_port, failure)
        finally:
            failure.cancel()
            gateway.stop_admitting()
            changed.set()
            rest.stop()
            await asyncio.gather(
                server.stop(settings.grace_s + _FAREWELL_S), rest_task, _end_after(gateway, settings.grace_s)
            )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listener.close()
        await channel.close()


async def _report_readiness(gateway: Gateway, server: ServiceServer, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        await server.set_ready(gateway.is_ready)
        logger.info("ready" if gateway.is_ready else "not ready")


async def _end_after(gateway: Gateway, grace_s: float) -> None:
    """Let open requests go on for their grace, then end them with an error that their clients see."""
    try:
        async with asyncio.timeout(grace_s):
            await gateway.wait_until_idle()
    except TimeoutError:
        gateway.end_open()


async def _first_failure(tasks: "list[asyncio.Task[None]]") -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()

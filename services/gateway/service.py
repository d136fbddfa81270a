"""The gateway's process: REST and gRPC over one client of the small model's service."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..config import MeshSettings
from ..errors import StartupError
from ..mesh.channels import open_channel
from ..mesh.server import ServiceServer, first_of
from ..mesh.tracing import open_tracer
from ..mesh.wire import gateway_pb2_grpc
from .admission.controller import AdmissionController
from .admission.door import Door
from .admission.outlook import PredictedService
from .admission.promise import Promise
from .admission.regulation import keep_promise, pace_starts
from .admission.throughput_model import ChainModel
from .gateway import Gateway
from .grpc_api import SERVICE_NAME, GatewayServicer
from .home import HomeClient
from .metrics import Metrics
from .open_files import allow_open_files
from .openai.app import make_app
from .openai.server import RestServer, bind
from .security.exposure import credentials_of
from .security.grpc_guard import KeyInterceptor, outside_options
from .security.key_ring import KeyRing
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
        # What was made so far stays. Going through it again and again would hold up all requests each time.
        gc.collect()
        gc.freeze()
        await first_of(stop, running.failure)


@asynccontextmanager
async def serving(settings: MeshSettings) -> AsyncIterator[RunningGateway]:
    """Listen while the context is open; ready once the home is there. The end of it is a graceful stop."""
    options = settings.gateway
    if not settings.slm.address:
        raise StartupError("slm.address is not set: the gateway must know its home", field="slm.address")
    allow_open_files()
    tokenizer = load_tokenizer(settings.slm.path)
    admission, outlook = options.admission, PredictedService()
    promise = Promise(outlook, admission.min_tokens_per_s, admission.max_first_token_s)
    keys = None if options.keys_path is None else KeyRing(options.keys_path)
    door = Door(options, promise, keys)
    listener = bind(options.host, options.port)
    rest_port: int = listener.getsockname()[1]
    channel = open_channel(settings.slm.address, settings.max_message_bytes, settings.tls)
    server = ServiceServer(
        [SERVICE_NAME],
        max_message_bytes=settings.max_message_bytes,
        options=outside_options(options.limits),
        interceptors=[] if keys is None else [KeyInterceptor(keys)],
    )
    tasks: list[asyncio.Task[None]] = []
    changed, tracer = asyncio.Event(), open_tracer("gateway")
    try:
        home = HomeClient(
            channel,
            tokenizer_hash=tokenizer.vocabulary.hash,
            home_timeout_s=options.home_timeout_s,
            piece_interval_s=options.piece_interval_s,
            max_message_bytes=settings.max_message_bytes,
            on_change=changed.set,
        )
        metrics = Metrics(settings.model_name, door.limiter, home, tracer)
        controller = AdmissionController(
            admission,
            home,
            ChainModel(),
            metrics.admission,
            outlook,
            max_running=options.max_running,
            max_ahead=settings.slm.max_ahead,
        )
        home.watcher = controller
        gateway = Gateway(settings, tokenizer, home, door, metrics, controller, tracer)
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(GatewayServicer(gateway), server.grpc)
        host = f"[{options.host}]" if ":" in options.host else options.host
        await server.start(f"{host}:{options.grpc_port}", credentials_of(options))
        rest = RestServer(make_app(gateway), gateway, listener, grace_s=settings.grace_s + _FAREWELL_S)
        rest_task = asyncio.create_task(rest.run(), name="REST")
        tasks = [
            rest_task,
            asyncio.create_task(home.run(), name="stream to slm"),
            asyncio.create_task(_report_readiness(gateway, server, changed), name="readiness"),
            asyncio.create_task(keep_promise(promise, door.limiter), name="promise"),
            asyncio.create_task(controller.run(), name="admission"),
        ]
        if door.limiter.starts_per_s is not None:
            tasks.append(asyncio.create_task(pace_starts(door.limiter), name="pace of starts"))
        if keys is not None:
            tasks.append(asyncio.create_task(keys.run(), name="keys"))
        logger.info("REST on %s://%s:%d", "http" if options.tls is None else "https", host, rest_port)
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
        await asyncio.gather(channel.close(), asyncio.to_thread(tracer.close))


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

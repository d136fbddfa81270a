"""The small model's gRPC service, home of all requests, and its life from loading to the last answer."""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial

import grpc
import torch

from ..config import MeshSettings
from ..cuda.stream import own_stream
from ..engine.engine import Engine
from ..engine.tensor_parallel import Leader
from ..errors import AllroadsError, StartupError
from ..memory import resolve_memory
from ..mesh.joined_call import joined_call
from ..mesh.server import ServiceServer, first_of
from ..mesh.status import grpc_status
from ..mesh.stream import Outbox, serve_stream
from ..mesh.tls import server_credentials
from ..mesh.tracing import Tracer, open_tracer
from ..mesh.wire import model_pb2, model_pb2_grpc
from ..model.decode_host import DecodeHost
from ..model.warm_up import warm_up
from ..policies.registry import PolicyRegistry
from .clients import Clients
from .commands import Command
from .decisions import Decisions
from .description import describe_home, require_default_policy, require_routers_for_mesh
from .home import Home
from .outbound import Outbound
from .peers import RouterPeer, TierPeer
from .probe import probe_all
from .scoring import ScoreBook
from .tensors_out import TensorsOut

logger = logging.getLogger(__name__)

SERVICE_NAME = model_pb2.DESCRIPTOR.services_by_name["HomeService"].full_name


class HomeServicer(model_pb2_grpc.HomeServiceServicer):
    """Adapts messages to the decode loop and back."""

    def __init__(
        self, description: model_pb2.DescribeResponse, clients: Clients, largest: TierPeer, tracer: Tracer
    ) -> None:
        self._description = description
        self._clients = clients
        self._largest = largest
        self._tracer = tracer

    async def Describe(  # noqa: N802 (named by the proto)
        self,
        request: model_pb2.DescribeRequest,
        context: "grpc.aio.ServicerContext[model_pb2.DescribeRequest, model_pb2.DescribeResponse]",
    ) -> model_pb2.DescribeResponse:
        """What is served here, by all tiers together."""
        return self._description

    async def Generate(  # type: ignore[override] # noqa: N802 (a stream that writes by its context)
        self,
        request_iterator: AsyncIterator[model_pb2.GenerateRequest],
        context: "grpc.aio.ServicerContext[model_pb2.GenerateRequest, model_pb2.GenerateResponse]",
    ) -> None:
        """Serve one gateway until it half-closes or is gone."""
        outbox: Outbox[model_pb2.GenerateResponse] = Outbox()
        stream_id = self._clients.streams.join(outbox)
        try:
            await serve_stream(
                context, request_iterator, outbox, lambda request: self._clients.take(stream_id, request)
            )
        except AllroadsError as error:
            await context.abort(grpc_status(error), error.message)
        finally:
            self._clients.streams.leave(stream_id)

    async def GetPromptLogprobs(  # noqa: N802
        self,
        request: model_pb2.PromptLogprobsRequest,
        context: "grpc.aio.ServicerContext[model_pb2.PromptLogprobsRequest, model_pb2.PromptLogprobsResponse]",
    ) -> model_pb2.PromptLogprobsResponse:
        """What the largest model thinks of each token of a prompt."""
        try:
            with joined_call(self._tracer, "read prompt", context) as traceparent:
                return await self._largest.prompt_logprobs(request, context.time_remaining(), traceparent)
        except AllroadsError as error:
            await context.abort(grpc_status(error), error.message)
            raise


async def run(settings: MeshSettings, stop: asyncio.Event, member: Leader | None = None) -> None:
    """Serve the small model and what it calls until `stop` is set.

    Args:
        settings: of the mesh.
        stop: set from outside.
        member: this process, where several run the model and it is the first of them.

    Raises:
        StartupError: the model cannot be loaded, a peer does not fit, or the address cannot be bound.
        Internal: the decode loop failed.
    """
    policies = _policies_for(settings)
    settings = resolve_memory(settings)
    engine = await asyncio.to_thread(partial(Engine.load, settings.slm, member=member))
    await asyncio.to_thread(warm_up, engine)
    decisions = Decisions.of(settings.slm, policies.get(settings.slm.policy))
    host: DecodeHost[Command] = DecodeHost()
    size, names = settings.max_message_bytes, list(settings.tiers)
    router = RouterPeer(
        settings.router.address, size, engine.facts, host.post, settings.tls, device=torch.device(settings.slm.device)
    )
    larger = _larger_tiers(settings, engine, host)
    peers = [router, *larger.values()]
    tracer = open_tracer("slm")
    clients = Clients(host.post, tracer)
    tasks: list[asyncio.Task[None]] = []

    def deliver(outbound: Outbound) -> None:
        for number, visit in outbound.visits.items():
            larger[number].visit(visit)
        router.score(outbound.score_batches)
        clients.deliver(outbound.clients)

    async def serve() -> None:
        """Meet the peers, then open the door."""
        await asyncio.gather(*(peer.until_fit() for peer in peers))
        descriptions = [tier.description for tier in larger.values()]
        require_routers_for_mesh(descriptions[-1], router.scorers)
        require_default_policy(policies.get(settings.slm.policy), router.scorers)
        description = describe_home(engine, settings.slm, policies, names, descriptions, router.scorers)
        servicer = HomeServicer(description, clients, larger[max(larger)], tracer)
        model_pb2_grpc.add_HomeServiceServicer_to_server(servicer, server.grpc)
        served = [policies.get(policy.name) for policy in description.mesh.policies]
        await probe_all(clients, served, num_tiers=len(names))
        decisions.is_open = True
        await server.start(settings.slm.address, server_credentials(settings.slm.address, settings.tls))
        await server.set_ready(True)
        logger.info("%s ready: %s", engine.facts.model_id, settings.slm.address)
        await asyncio.Event().wait()

    home = Home(
        engine,
        policies,
        settings.slm,
        ScoreBook(router.sender, engine.recorder),
        TensorsOut({number: tier.sender for number, tier in larger.items()}, len(engine.facts.vocabulary)),
        decisions,
        num_tiers=len(names),
        deliver=lambda outbound: host.in_loop(deliver, outbound),
        tracer=tracer,
    )
    server = ServiceServer([SERVICE_NAME], max_message_bytes=size)
    host.start(home.turn, own_stream(settings.slm.device, settings.slm.stream_priority))
    try:
        runs = [peer.run() for peer in peers]
        tasks += [asyncio.create_task(work) for work in (*runs, serve(), host.until_crash())]
        await first_of(stop, *tasks)
    finally:
        clients.refuse_new()
        await server.stop(settings.grace_s, is_busy=lambda: home.num_requests > 0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        host.stop()
        for peer in peers:
            await peer.close()
        await asyncio.gather(asyncio.to_thread(decisions.close), asyncio.to_thread(tracer.close))


def _policies_for(settings: MeshSettings) -> PolicyRegistry:
    """All policies, the default one among them."""
    policies = PolicyRegistry.load()
    if settings.slm.policy not in {policy.name for policy in policies.all()}:
        raise StartupError(f"slm.policy: unknown policy {settings.slm.policy!r}", field="slm.policy")
    return policies


def _larger_tiers(settings: MeshSettings, engine: Engine, host: DecodeHost[Command]) -> dict[int, TierPeer]:
    """Our ends of the streams to the larger models, by tier."""
    size, device = settings.max_message_bytes, torch.device(settings.slm.device)
    return {
        number: TierPeer(
            name,
            number,
            settings.tier_settings(name).address,
            size,
            engine.facts,
            host.post,
            settings.tls,
            device=device,
        )
        for number, name in enumerate(settings.tiers)
        if number
    }

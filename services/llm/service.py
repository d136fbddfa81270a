"""The large model's gRPC service and its life from loading to the last answer."""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial

import grpc

from ..config import MeshSettings, ModelSettings
from ..engine.engine import Engine
from ..errors import AllroadsError
from ..memory import resolve_memory
from ..mesh.server import ServiceServer, first_of
from ..mesh.status import grpc_status
from ..mesh.stream import Outbox, serve_stream
from ..mesh.wire import model_pb2, model_pb2_grpc
from ..model.decode_host import DecodeHost
from ..model.description import describe, vocabulary_page
from ..model.streams import Streams
from ..model.warm_up import warm_up
from .opinion_log import OpinionLog
from .tier import Command, StreamClosed, Tier, Visit

logger = logging.getLogger(__name__)

SERVICE_NAME = model_pb2.DESCRIPTOR.services_by_name["TierService"].full_name
TIER = 1


class TierServicer(model_pb2_grpc.TierServiceServicer):
    """Adapts messages to the decode loop and back."""

    def __init__(self, engine: Engine, settings: ModelSettings, host: DecodeHost[Command]) -> None:
        self._description = describe(engine, settings, TIER)
        self._vocabulary = engine.facts.vocabulary
        self._host = host
        self.streams: Streams[model_pb2.VisitResponse] = Streams(lambda stream_id: host.post(StreamClosed(stream_id)))

    async def Describe(  # noqa: N802 (named by the proto)
        self,
        request: model_pb2.DescribeRequest,
        context: "grpc.aio.ServicerContext[model_pb2.DescribeRequest, model_pb2.DescribeResponse]",
    ) -> model_pb2.DescribeResponse:
        """What is served here."""
        return self._description

    async def GetVocabulary(  # noqa: N802
        self,
        request: model_pb2.GetVocabularyRequest,
        context: "grpc.aio.ServicerContext[model_pb2.GetVocabularyRequest, model_pb2.GetVocabularyResponse]",
    ) -> model_pb2.GetVocabularyResponse:
        """A page of the vocabulary."""
        return vocabulary_page(self._vocabulary, request)

    async def Visit(  # type: ignore[override] # noqa: N802 (a stream that writes by its context)
        self,
        request_iterator: AsyncIterator[model_pb2.VisitRequest],
        context: "grpc.aio.ServicerContext[model_pb2.VisitRequest, model_pb2.VisitResponse]",
    ) -> None:
        """Serve one home until it half-closes or is gone."""
        outbox: Outbox[model_pb2.VisitResponse] = Outbox()
        stream_id = self.streams.join(outbox)
        try:
            await serve_stream(
                context, request_iterator, outbox, lambda request: self._host.post(Visit(stream_id, request))
            )
        except AllroadsError as error:
            await context.abort(grpc_status(error), error.message)
        finally:
            self.streams.leave(stream_id)


async def run(settings: MeshSettings, stop: asyncio.Event) -> None:
    """Serve the large model until `stop` is set.

    Raises:
        StartupError: the model cannot be loaded, or the address not be bound.
        Internal: the decode loop failed.
    """
    settings = resolve_memory(settings)
    engine = await asyncio.to_thread(partial(Engine.load, settings.llm, catch_up=settings.llm.catch_up))
    await asyncio.to_thread(warm_up, engine)
    host: DecodeHost[Command] = DecodeHost()
    servicer = TierServicer(engine, settings.llm, host)
    log = OpinionLog(settings.llm.opinions_path) if settings.llm.opinions_path is not None else None
    tier = Tier(
        engine,
        lambda responses: host.in_loop(servicer.streams.deliver, responses),
        opinions=settings.llm.opinions,
        opinion_log=log,
    )
    server = ServiceServer([SERVICE_NAME], max_message_bytes=settings.max_message_bytes)
    model_pb2_grpc.add_TierServiceServicer_to_server(servicer, server.grpc)
    await server.start(settings.llm.address)
    crash = asyncio.create_task(host.until_crash())
    try:
        host.start(tier.turn)
        await server.set_ready(True)
        logger.info("%s ready: %s", engine.facts.model_id, settings.llm.address)
        await first_of(stop, crash)
    finally:
        await server.stop(settings.grace_s, is_busy=lambda: tier.num_visitors > 0)
        crash.cancel()
        host.stop()

"""A larger model's gRPC service and its life from loading to the last answer."""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial

import grpc
import torch
from torch import Tensor

from ..config import MeshSettings, ModelSettings
from ..cuda.stream import own_stream
from ..engine.engine import Engine
from ..engine.kv_blocks import zeros
from ..engine.tensor_parallel import Leader
from ..errors import AllroadsError, InvalidArgument, NotFound, OutOfStep
from ..memory import resolve_memory
from ..mesh.joined_call import joined_call
from ..mesh.region_transport import Received
from ..mesh.registration import Registration
from ..mesh.server import ServiceServer, first_of
from ..mesh.status import grpc_status
from ..mesh.stream import Outbox, serve_stream
from ..mesh.tensor_receiver import TensorReceiver
from ..mesh.tls import server_credentials
from ..mesh.tracing import OpenSpan, Tracer, open_tracer
from ..mesh.wire import model_pb2, model_pb2_grpc
from ..mesh.wire.common_pb2 import Registered
from ..model import logprobs_wire
from ..model.decode_host import DecodeHost
from ..model.description import describe, vocabulary_page
from ..model.streams import Streams
from ..model.warm_up import warm_up
from ..policies.registry import PolicyRegistry
from .kv_sharing import KvSharing, memory_to_lend
from .lending import KvLender
from .opinion_log import OpinionLog
from .prompts import Answer, LeavePrompt, ReadPrompt
from .tier import Call, Command, StreamClosed, Tier, Visit

logger = logging.getLogger(__name__)

SERVICE_NAME = model_pb2.DESCRIPTOR.services_by_name["TierService"].full_name


class TierServicer(model_pb2_grpc.TierServiceServicer):
    """Adapts messages to the decode loop and back."""

    def __init__(
        self,
        engine: Engine,
        settings: ModelSettings,
        tier: int,
        host: DecodeHost[Command],
        *,
        name: str,
        tracer: Tracer,
        lender: KvLender | None = None,
    ) -> None:
        self._lender = lender
        self._device = torch.device(settings.device)
        self._description = describe(engine, settings, tier)
        self._vocabulary = engine.facts.vocabulary
        self._host = host
        self._name, self._tracer = name, tracer
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
        receiver = TensorReceiver(context.peer(), device=self._device)

        def answer(registered: Registered) -> None:
            outbox.put(model_pb2.VisitResponse(registered=registered))

        registration = Registration(receiver, answer, outbox.close)

        def take(request: model_pb2.VisitRequest) -> None:
            if request.HasField("register"):
                registration.take(request.register)
            else:
                arrivals: list[Received] = []
                logits = _read_draft_logits(receiver, request, arrivals)
                for received in arrivals:
                    self._host.post(Call(received.join))
                self._host.post(Visit(stream_id, request, logits, self._spans(request)))
                if (withdrawal := receiver.withdrawal()) is not None:
                    answer(withdrawal)

        try:
            await serve_stream(context, request_iterator, outbox, take)
        except AllroadsError as error:
            await context.abort(grpc_status(error), error.message)
        finally:
            self.streams.leave(stream_id)
            await registration.close()

    async def GetPromptLogprobs(  # noqa: N802
        self,
        request: model_pb2.PromptLogprobsRequest,
        context: "grpc.aio.ServicerContext[model_pb2.PromptLogprobsRequest, model_pb2.PromptLogprobsResponse]",
    ) -> model_pb2.PromptLogprobsResponse:
        """What this model thinks of each token of a prompt."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        prompt = ReadPrompt(
            tuple(request.token_ids), request.num_logprobs, lambda answer: self._host.in_loop(_set, answered, answer)
        )
        self._host.post(prompt)
        try:
            with joined_call(self._tracer, "read prompt", context):
                answer = await answered
                if isinstance(answer, AllroadsError):
                    raise answer
        except AllroadsError as error:
            await context.abort(grpc_status(error), error.message)
            raise
        finally:
            self._host.post(LeavePrompt(prompt))
        return model_pb2.PromptLogprobsResponse(logprobs=map(logprobs_wire.to_wire, answer))

    async def MoveSequence(  # noqa: N802
        self,
        request: model_pb2.MoveSequenceRequest,
        context: "grpc.aio.ServicerContext[model_pb2.MoveSequenceRequest, model_pb2.MoveSequenceResponse]",
    ) -> model_pb2.MoveSequenceResponse:
        """Lend the KV of a sequence's beginning."""
        try:
            return await self._require_lender().move(request)
        except AllroadsError as error:
            await context.abort(grpc_status(error), error.message)
            raise

    async def ReleaseLoan(  # noqa: N802
        self,
        request: model_pb2.ReleaseLoanRequest,
        context: "grpc.aio.ServicerContext[model_pb2.ReleaseLoanRequest, model_pb2.ReleaseLoanResponse]",
    ) -> model_pb2.ReleaseLoanResponse:
        """End a loan."""
        try:
            return await self._require_lender().release(request)
        except AllroadsError as error:
            await context.abort(grpc_status(error), error.message)
            raise

    def _require_lender(self) -> KvLender:
        if self._lender is None:
            raise NotFound("no KV is lent here; set lends_kv")
        return self._lender

    def _spans(self, request: model_pb2.VisitRequest) -> dict[int, OpenSpan]:
        """Of the sequences that the hand-offs of a message open, by their place in it."""
        spans = (
            (index, self._tracer.join(self._name, hand_off.visitor.traceparent))
            for index, hand_off in enumerate(request.hand_offs)
            if not hand_off.prefix_length
        )
        return {index: span for index, span in spans if span is not None}


def _set(answered: "asyncio.Future[Answer]", answer: Answer) -> None:
    if not answered.done():
        answered.set_result(answer)


def _read_draft_logits(
    receiver: TensorReceiver, request: model_pb2.VisitRequest, arrivals: list[Received]
) -> dict[int, Tensor | AllroadsError]:
    """What the hand-offs of a message bring, by their place in it; one that cannot be read fails by itself.

    It is sent again where that is no fault of its own: the region by which it came is of no more use.

    `arrivals`: gets what is on its way on the device, which the decode thread must join before it looks at it.
    """
    read: dict[int, Tensor | AllroadsError] = {}
    for index, hand_off in enumerate(request.hand_offs):
        if hand_off.HasField("draft_logits"):
            try:
                received = receiver.read([hand_off.draft_logits])
            except InvalidArgument as error:
                read[index] = (
                    OutOfStep(f"the logits of its drafts are lost: {receiver.fault}") if receiver.fault else error
                )
                continue
            (read[index],) = received.tensors
            if received.mark is not None:
                arrivals.append(received)
    return read


async def run(settings: MeshSettings, stop: asyncio.Event, name: str = "llm", member: Leader | None = None) -> None:
    """Serve a larger model until `stop` is set.

    Args:
        settings: of the mesh.
        stop: set from outside.
        name: which of the mesh's tiers.
        member: this process, where several run the model and it is the first of them.

    Raises:
        StartupError: the model cannot be loaded, or the address not be bound.
        Internal: the decode loop failed.
    """
    settings = resolve_memory(settings)
    own, number = settings.tier_settings(name), list(settings.tiers).index(name)
    policies = PolicyRegistry.load()
    memory = memory_to_lend(own)
    allocate = zeros if memory is None else memory.allocate
    engine = await asyncio.to_thread(partial(Engine.load, own, catch_up=own.catch_up, allocate=allocate, member=member))
    await asyncio.to_thread(warm_up, engine)
    host: DecodeHost[Command] = DecodeHost()
    tracer = open_tracer(name)
    sharing = await KvSharing.start(engine, own, memory, host, settings)
    servicer = TierServicer(engine, own, number, host, name=name, tracer=tracer, lender=sharing.lender)
    log = OpinionLog(own.opinions_path) if own.opinions_path is not None else None
    tier = Tier(
        engine,
        policies,
        lambda responses: host.in_loop(servicer.streams.deliver, responses),
        number=number,
        opinions=own.opinions,
        opinion_log=log,
        tracer=tracer,
    )
    credentials = server_credentials(own.address, settings.tls)
    server = ServiceServer([SERVICE_NAME], max_message_bytes=settings.max_message_bytes)
    model_pb2_grpc.add_TierServiceServicer_to_server(servicer, server.grpc)
    await server.start(own.address, credentials)
    crash = asyncio.create_task(host.until_crash())
    try:
        host.start(tier.turn, own_stream(own.device, own.stream_priority))
        await server.set_ready(True)
        logger.info("%s ready: %s", engine.facts.model_id, own.address)
        await first_of(stop, crash)
    finally:
        await server.stop(settings.grace_s, is_busy=lambda: tier.num_visitors > 0)
        crash.cancel()
        host.stop()
        await sharing.close()
        await asyncio.to_thread(tracer.close)

"""The router's gRPC service and its life from loading to the last answer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from functools import partial

import grpc
import torch

from ..config import MeshSettings
from ..cuda.runtime import usable_device
from ..cuda.stream import own_stream
from ..errors import AllroadsError, NotFound, ResourceExhausted
from ..mesh.registration import Registration
from ..mesh.server import ServiceServer, first_of
from ..mesh.status import grpc_status, to_wire
from ..mesh.stream import Outbox, serve_stream
from ..mesh.tensor_receiver import TensorReceiver
from ..mesh.tls import server_credentials
from ..mesh.transports import CPU
from ..mesh.wire import router_pb2 as pb
from ..mesh.wire import router_pb2_grpc
from ..mesh.wire.common_pb2 import Registered
from .scorer import Scorer
from .scorers import load_scorers
from .worker import Job, Scored, ScoringWorker

logger = logging.getLogger(__name__)

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["RouterService"].full_name
_WARM_UP_ROWS = (1, 2, 8, 32, 64)

ScoreContext = grpc.aio.ServicerContext[pb.ScoreRequest, pb.ScoreResponse]


class RouterServicer(router_pb2_grpc.RouterServiceServicer):
    """Adapts messages to the scoring worker and back."""

    def __init__(self, scorers: Mapping[str, Scorer], worker: ScoringWorker, device: torch.device = CPU) -> None:
        """`device`: where the scorers compute."""
        self._scorers = scorers
        self._worker = worker
        self._device = device

    async def DescribeRouter(  # noqa: N802 (named by the proto)
        self,
        request: pb.DescribeRouterRequest,
        context: "grpc.aio.ServicerContext[pb.DescribeRouterRequest, pb.DescribeRouterResponse]",
    ) -> pb.DescribeRouterResponse:
        """What each scorer was made for."""
        return pb.DescribeRouterResponse(scorers=[_describe(name, scorer) for name, scorer in self._scorers.items()])

    async def Score(  # type: ignore[override] # noqa: N802 (a stream that writes by its context)
        self, request_iterator: AsyncIterator[pb.ScoreRequest], context: ScoreContext
    ) -> None:
        """Score the batches of one home until it half-closes or is gone."""
        session = _Session(self._scorers, self._worker, TensorReceiver(context.peer(), device=self._device))
        try:
            await serve_stream(context, request_iterator, session.outbox, session.on_request)
        except AllroadsError as error:
            logger.warning("stream of %s ended: %s", context.peer(), error.message)
            await context.abort(grpc_status(error), error.message)
        finally:
            await session.close()


class _Session:
    """One stream: its region, and the way back for its scores."""

    def __init__(self, scorers: Mapping[str, Scorer], worker: ScoringWorker, receiver: TensorReceiver) -> None:
        self.outbox: Outbox[pb.ScoreResponse] = Outbox()
        self._scorers, self._worker = scorers, worker
        self._receiver = receiver
        self._registration = Registration(receiver, self._registered, self.outbox.close)
        self._loop = asyncio.get_running_loop()
        self._overflow: ResourceExhausted | None = None

    def on_request(self, request: pb.ScoreRequest) -> None:
        """Take a message. A bad batch is answered with its error; only a bad registration ends the stream."""
        if self._overflow is not None:
            raise self._overflow
        if request.WhichOneof("kind") == "register":
            self._registration.take(request.register)
            return
        batch = request.batch
        try:
            self._submit(batch)
        except AllroadsError as error:
            self.outbox.put(_failed(batch.batch_id, error))
        if (withdrawal := self._receiver.withdrawal()) is not None:
            self._registered(withdrawal)

    async def close(self) -> None:
        """Let go of the peer's region. Scores that come later go nowhere."""
        await self._registration.close()

    def _registered(self, answer: Registered) -> None:
        self.outbox.put(pb.ScoreResponse(registered=answer))

    def _submit(self, batch: pb.ScoreBatch) -> None:
        # Read before anything is refused: the peer's next lease of the place waits for that.
        received = self._receiver.read([batch.top_logits, batch.hidden_states, batch.token_ids])
        scorer = self._scorers.get(batch.scorer)
        if scorer is None:
            raise NotFound(f"no scorer of that name; there are {sorted(self._scorers)}", field="scorer")
        top_logits, hidden_states, token_ids = received.tensors
        features = top_logits, hidden_states, token_ids
        scorer.check(*features)
        batch_id = batch.batch_id

        def done(result: Scored | AllroadsError) -> None:
            self._loop.call_soon_threadsafe(self._answer, batch_id, result)

        self._worker.submit(Job(scorer, features, done, received.join))

    def _answer(self, batch_id: int, result: Scored | AllroadsError) -> None:
        try:
            if isinstance(result, AllroadsError):
                self.outbox.put(_failed(batch_id, result))
            else:
                self.outbox.put(pb.ScoreResponse(scores=_told(batch_id, result)))
        except ResourceExhausted as error:
            # The stream ends with its next message; until then there is nobody to tell.
            self._overflow = error


def _told(batch_id: int, scored: Scored) -> pb.Scores:
    return pb.Scores(batch_id=batch_id, scores=scored.values, replayed=scored.is_replayed)


def _failed(batch_id: int, error: AllroadsError) -> pb.ScoreResponse:
    return pb.ScoreResponse(scores=pb.Scores(batch_id=batch_id, error=to_wire(error)))


def _describe(name: str, scorer: Scorer) -> pb.ScorerDescription:
    facts = scorer.facts
    return pb.ScorerDescription(
        name=name,
        slm_id=facts.slm.model_id,
        llm_id=facts.llm.model_id,
        tokenizer_hash=facts.slm.tokenizer_hash,
        hidden_size=facts.hidden_size,
        num_top_logits=facts.num_top_logits,
        threshold=facts.threshold,
        num_parameters=facts.num_parameters,
        score_quantiles=facts.score_quantiles,
        calibrated_share=facts.calibrated_share,
    )


async def run(settings: MeshSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set.

    Raises:
        CheckpointError: a scorer cannot be loaded, or was made for another small model.
        StartupError: the device cannot be used, or the address is in use or cannot be bound.
    """
    own = settings.router
    torch.set_num_threads(own.num_threads)
    device = usable_device(own.device, "router.device")
    scorers = load_scorers(settings)
    worker = ScoringWorker(own.num_threads, surroundings=own_stream(device, own.stream_priority))
    credentials = server_credentials(settings.router.address, settings.tls)
    server = ServiceServer([SERVICE_NAME], max_message_bytes=settings.max_message_bytes)
    servicer = RouterServicer(scorers, worker, device)
    router_pb2_grpc.add_RouterServiceServicer_to_server(servicer, server.grpc)
    await server.start(settings.router.address, credentials)
    worker.start()
    try:
        for scorer in scorers.values():
            await _warm_up(scorer, worker)
        await server.set_ready(True)
        logger.info("router ready at %s", settings.router.address)
        await first_of(stop)
    finally:
        await server.stop(settings.grace_s, is_busy=lambda: False)
        worker.stop()


async def _warm_up(scorer: Scorer, worker: ScoringWorker) -> None:
    """Score batches of several sizes through the worker, so that no request pays for first use."""
    loop = asyncio.get_running_loop()
    for rows in _WARM_UP_ROWS:
        answer: asyncio.Future[Scored | AllroadsError] = loop.create_future()
        features = (
            torch.zeros(rows, scorer.facts.num_top_logits),
            torch.zeros(rows, scorer.facts.hidden_size),
            torch.zeros(rows, dtype=torch.int64),
        )
        worker.submit(Job(scorer, features, partial(_resolve, loop, answer)))
        result = await answer
        if isinstance(result, AllroadsError):
            raise result


def _resolve(
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[Scored | AllroadsError]",
    result: Scored | AllroadsError,
) -> None:
    loop.call_soon_threadsafe(future.set_result, result)

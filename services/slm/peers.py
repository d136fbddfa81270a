"""The inter-model loop: the home's streams to the router and to the larger tiers.

Each peer is described and checked whenever it comes up, not only at start: what comes back after a
restart may be another model. A peer that does not fit is treated as out of reach.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import grpc
import torch

from ..config import MeshTlsSettings
from ..engine.engine import ModelFacts
from ..errors import AllroadsError, CheckpointError, InvalidArgument, StartupError
from ..mesh.channels import open_channel
from ..mesh.joined_call import metadata_of
from ..mesh.status import from_rpc, to_wire
from ..mesh.stream import PeerStream
from ..mesh.tensor_sender import TensorSender
from ..mesh.transports import CPU
from ..mesh.wire import common_pb2, model_pb2, model_pb2_grpc, router_pb2, router_pb2_grpc
from ..model.description import require_same_tokenizer
from .commands import Command, RouterDown, RouterUp, Scored, TierDown, TierUp, Visited

logger = logging.getLogger(__name__)

_DESCRIBE_TIMEOUT_S = 10.0
# Draft logits that find no room in a slot, or no free slot, go inline. The most is for 8 drafts of 163,840 tokens, as
# Qwen's vocabulary has 151,936; the slots of each larger tier take 40 MiB then, of /dev/shm or of the GPU.
_DRAFTS_PER_SLOT, _MAX_SLOT_BYTES, _NUM_SLOTS = 8, 5 * 1024 * 1024, 8
_ROUTER_SLOT_BYTES, _NUM_ROUTER_SLOTS = 256 * 1024, 16

Post = Callable[[Command], None]


class Peer(ABC):
    """One neighbour: its channel, its stream, what tensors go through, and whether it fits."""

    def __init__(
        self,
        name: str,
        address: str,
        max_message_bytes: int,
        tls: MeshTlsSettings | None,
        *,
        slot_bytes: int,
        num_slots: int,
        device: torch.device,
    ) -> None:
        self.name = name
        self.sender = TensorSender(
            name, slot_bytes=slot_bytes, num_slots=num_slots, device=device, on_given_up=self._on_given_up
        )
        self.channel = open_channel(address, max_message_bytes, tls)
        self._loop = asyncio.get_running_loop()
        self._fits: asyncio.Future[None] = self._loop.create_future()
        self._check: asyncio.Task[None] | None = None
        self._agreeing: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def run(self) -> None:
        """Keep the stream until cancelled."""

    @abstractmethod
    async def _meet(self) -> None:
        """Describe the peer, check that it fits, and tell the decode loop that it is up."""

    async def until_fit(self) -> None:
        """Wait until the peer has been met for the first time.

        Raises:
            StartupError: it does not fit.
        """
        await asyncio.shield(self._fits)

    @abstractmethod
    def _register(self, region: common_pb2.Region) -> None:
        """Tell the peer of a region."""

    async def close(self) -> None:
        """Let go of the channel and of the region."""
        self._forget()
        self.sender.close()
        if self._agreeing:
            await asyncio.wait(self._agreeing)
        await self.channel.close()

    def _agree(self, step: Callable[[], common_pb2.Region | None]) -> None:
        """Take a step towards a region that both ends reach; in a thread where it may wait for a device.

        Until it is taken tensors go inline. What comes of it after the stream is lost is None.
        """
        if not self.sender.may_wait:
            self._offer(step())
            return
        task = asyncio.create_task(self._agree_later(step), name=f"agree with {self.name} on a region")
        self._agreeing.add(task)
        task.add_done_callback(self._agreeing.discard)

    async def _agree_later(self, step: Callable[[], common_pb2.Region | None]) -> None:
        self._offer(await asyncio.to_thread(step))

    def _on_given_up(self) -> None:
        """In the decode thread: the region is of no more use, and the next kind of memory is to be tried."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._agree, self.sender.offer_next)

    def _offer(self, region: common_pb2.Region | None) -> None:
        if region is not None:
            with suppress(AllroadsError):
                self._register(region)

    def _on_up(self) -> None:
        self._check = asyncio.create_task(self._check_fit(), name=f"meet {self.name}")

    def _forget(self) -> None:
        if self._check is not None:
            self._check.cancel()

    async def _check_fit(self) -> None:
        try:
            await self._meet()
        except grpc.aio.AioRpcError as error:
            logger.warning("%s cannot be asked what it is: %s", self.name, from_rpc(error, self.name).message)
        except StartupError as error:
            logger.error("%s does not fit: %s", self.name, error.message)
            if not self._fits.done():
                self._fits.set_exception(error)
        else:
            if not self._fits.done():
                self._fits.set_result(None)


class RouterPeer(Peer):
    """The router: takes feature batches, gives scores."""

    def __init__(
        self,
        address: str,
        max_message_bytes: int,
        facts: ModelFacts,
        post: Post,
        tls: MeshTlsSettings | None = None,
        *,
        device: torch.device = CPU,
    ) -> None:
        """`device`: where the small model's numbers lie."""
        size, count = _ROUTER_SLOT_BYTES, _NUM_ROUTER_SLOTS
        super().__init__("router", address, max_message_bytes, tls, slot_bytes=size, num_slots=count, device=device)
        self.scorers: dict[str, router_pb2.ScorerDescription] = {}
        """By name, once it has been met."""
        self._facts, self._post = facts, post
        stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(self.channel)
        self._stub = stub
        self._stream: PeerStream[router_pb2.ScoreRequest, router_pb2.ScoreResponse] = PeerStream(
            self.name,
            stub.Score,
            on_up=self._on_up,
            on_response=self._on_response,
            on_down=self._on_down,
            max_message_bytes=max_message_bytes,
        )

    async def run(self) -> None:
        """See `Peer.run`."""
        await self._stream.run()

    def score(self, batches: list[router_pb2.ScoreBatch]) -> None:
        """Send batches; those for a router that is gone are dropped, since the decode loop learns of it too."""
        with suppress(AllroadsError):
            for batch in batches:
                try:
                    self._stream.send(router_pb2.ScoreRequest(batch=batch))
                except InvalidArgument as error:
                    self.sender.retract((batch.top_logits, batch.hidden_states, batch.token_ids))
                    self._post(Scored(router_pb2.Scores(batch_id=batch.batch_id, error=to_wire(error))))

    async def _meet(self) -> None:
        answer = await self._stub.DescribeRouter(router_pb2.DescribeRouterRequest(), timeout=_DESCRIBE_TIMEOUT_S)
        for scorer in answer.scorers:
            self._require_fit(scorer)
        self.scorers = {scorer.name: scorer for scorer in answer.scorers}
        self._agree(self.sender.open)
        self._post(RouterUp(self.scorers))

    def _require_fit(self, scorer: router_pb2.ScorerDescription) -> None:
        for what, its, mine in (
            ("tokenizer", scorer.tokenizer_hash, self._facts.vocabulary.hash),
            ("hidden size", scorer.hidden_size, self._facts.hidden_size),
        ):
            if its != mine:
                raise CheckpointError(
                    f"the router's scorer {scorer.name} was made for another small model ({scorer.slm_id}): its {what} "
                    f"is {its}, here it is {mine}; train a router for this pair"
                )

    def _on_response(self, response: router_pb2.ScoreResponse) -> None:
        if response.WhichOneof("kind") == "scores":
            self._post(Scored(response.scores))
        else:
            self._agree(partial(self.sender.on_registered, response.registered))

    def _register(self, region: common_pb2.Region) -> None:
        self._stream.send(router_pb2.ScoreRequest(register=region))

    def _on_down(self, error: AllroadsError) -> None:
        self._forget()
        self.sender.close()
        self._post(RouterDown(error))


class TierPeer(Peer):
    """A larger model's service: takes hand-offs, gives tokens."""

    def __init__(
        self,
        name: str,
        tier: int,
        address: str,
        max_message_bytes: int,
        facts: ModelFacts,
        post: Post,
        tls: MeshTlsSettings | None = None,
        *,
        device: torch.device = CPU,
    ) -> None:
        """`device`: where the small model's numbers lie."""
        size = min(_DRAFTS_PER_SLOT * len(facts.vocabulary) * torch.float32.itemsize, _MAX_SLOT_BYTES)
        super().__init__(name, address, max_message_bytes, tls, slot_bytes=size, num_slots=_NUM_SLOTS, device=device)
        self.description = model_pb2.DescribeResponse()
        self._tier, self._facts, self._post = tier, facts, post
        stub: model_pb2_grpc.TierServiceAsyncStub = model_pb2_grpc.TierServiceStub(self.channel)
        self._stub = stub
        self._stream: PeerStream[model_pb2.VisitRequest, model_pb2.VisitResponse] = PeerStream(
            self.name,
            stub.Visit,
            on_up=self._on_up,
            on_response=self._on_response,
            on_down=self._on_down,
            max_message_bytes=max_message_bytes,
        )

    async def run(self) -> None:
        """See `Peer.run`."""
        await self._stream.run()

    def visit(self, request: model_pb2.VisitRequest) -> None:
        """Send what is for the tier; for one that is gone it is dropped, as the decode loop learns of that."""
        with suppress(AllroadsError):
            try:
                self._stream.send(request)
            except InvalidArgument as error:
                self._visit_one_by_one(request, error)

    async def prompt_logprobs(
        self, request: model_pb2.PromptLogprobsRequest, timeout_s: float | None, traceparent: str
    ) -> model_pb2.PromptLogprobsResponse:
        """What the tier's model thinks of a prompt.

        Raises:
            AllroadsError: the tier is out of reach, or refuses.
        """
        try:
            metadata = metadata_of(traceparent)
            return await self._stub.GetPromptLogprobs(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self.name) from error

    def _visit_one_by_one(self, request: model_pb2.VisitRequest, error: InvalidArgument) -> None:
        """What is too big for one message: only a hand-off that is too big by itself fails."""
        hand_offs, closed = request.hand_offs, request.closed_sequence_ids
        if request.HasField("launch"):
            self.visit(model_pb2.VisitRequest(launch=request.launch))
        if len(hand_offs) + bool(closed) == 1:
            self.sender.retract(hand_off.draft_logits for hand_off in hand_offs)
            errors = [common_pb2.SequenceError(sequence_id=h.sequence_id, error=to_wire(error)) for h in hand_offs]
            self._post(Visited(self._tier, model_pb2.VisitResponse(errors=errors)))
            return
        for hand_off in hand_offs:
            self.visit(model_pb2.VisitRequest(hand_offs=[hand_off]))
        if closed:
            self.visit(model_pb2.VisitRequest(closed_sequence_ids=closed))

    async def _meet(self) -> None:
        self.description = await self._stub.Describe(model_pb2.DescribeRequest(), timeout=_DESCRIBE_TIMEOUT_S)
        await require_same_tokenizer(self._facts.vocabulary, self.description, self._stub)
        self._agree(self.sender.open)
        description = self.description
        self._post(TierUp(self._tier, description.max_context_tokens, frozenset(description.eos_token_ids)))

    def _register(self, region: common_pb2.Region) -> None:
        self._stream.send(model_pb2.VisitRequest(register=region))

    def _on_response(self, response: model_pb2.VisitResponse) -> None:
        if response.HasField("registered"):
            self._agree(partial(self.sender.on_registered, response.registered))
        else:
            self._post(Visited(self._tier, response))

    def _on_down(self, error: AllroadsError) -> None:
        self._forget()
        self.sender.close()
        self._post(TierDown(self._tier, error))

"""The client of the small model's service: one stream that carries every request of this gateway.

A request outlives the stream: when the home is lost and comes back, every open request is sent again
with the tokens that are committed, and goes on where it was.
"""

import asyncio
import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from itertools import count
from typing import Protocol

import grpc

from ..errors import AllroadsError, DeadlineExceeded, Internal, InvalidArgument, Unavailable
from ..mesh.joined_call import metadata_of
from ..mesh.status import from_rpc, from_wire
from ..mesh.stream import PeerStream
from ..mesh.wire import common_pb2, model_pb2, model_pb2_grpc
from .delivery import cut, make_sequence_id
from .sequence import Ending, Sequence
from .tiers import MAX_TIERS, are_tier_names
from .waker import Waker

logger = logging.getLogger(__name__)

_DESCRIBE_TIMEOUT_S = 5.0
_DESCRIBE_PAUSE_S = 0.5
_LOST, _DEADLINE = "lost", "deadline"


class HomeWatcher(Protocol):
    """Learns what goes on at the home. Called in the event loop; must not block."""

    def on_reports(self, reports: SequenceOf[model_pb2.TierReport]) -> None:
        """Tiers told what they did, the home first."""

    def on_open_requests(self, num_open: int) -> None:
        """So many requests of this client are open now."""

    def on_first_token(self, seconds: float, num_prompt_tokens: int) -> None:
        """A request's first token came, so long after the request was opened."""

    def on_end(self, num_tokens: int) -> None:
        """A request was closed, with so many tokens."""


class HomeClient:
    """Opens sequences at the home, hands out their tokens, and aborts them. Belongs to one event loop."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        tokenizer_hash: str,
        home_timeout_s: float,
        piece_interval_s: float,
        max_message_bytes: int,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._stub = model_pb2_grpc.HomeServiceStub(channel)
        self._tokenizer_hash = tokenizer_hash
        self._home_timeout_s = home_timeout_s
        self._waker = Waker(piece_interval_s)
        self._on_change = on_change
        self._stream: PeerStream[model_pb2.GenerateRequest, model_pb2.GenerateResponse] = PeerStream(
            "slm",
            self._stub.Generate,
            on_up=self._on_up,
            on_response=self._on_response,
            on_down=self._on_down,
            max_message_bytes=max_message_bytes,
        )
        self._numbers = count(1)
        self._sequences: dict[int, Sequence] = {}
        self._unsent: dict[int, Sequence] = {}
        self._aborted: list[int] = []
        self._opened_s: dict[int, float] = {}
        self._launches: list[model_pb2.LaunchThreshold] = []
        self._launches_are_unsent = False
        self._flush_is_due = False
        self._greeting: asyncio.Task[None] | None = None
        self.mesh: model_pb2.MeshDescription | None = None
        """What the home said of itself last; None until a home that fits was met."""
        self.is_ready = False
        """Whether a home that fits is there now."""
        self.load = model_pb2.Load()
        self.watcher: HomeWatcher | None = None

    async def run(self) -> None:
        """Keep the stream until cancelled."""
        try:
            await self._stream.run()
        finally:
            self._stop_greeting()

    def describe(self) -> model_pb2.MeshDescription:
        """What the mesh can do.

        Raises:
            Unavailable: no home that fits was met yet.
        """
        if self.mesh is None:
            raise Unavailable("the small model's service is not there yet", retry_after_s=1.0)
        return self.mesh

    def open(self, request: model_pb2.OpenRequest, timeout_s: float) -> Sequence:
        """Start a sequence; it is sent with all others of this tick, or when the home is back."""
        has_logprobs = request.sampling.HasField("num_logprobs")
        sequence_id = make_sequence_id(next(self._numbers), has_logprobs=has_logprobs)
        sequence = Sequence(sequence_id, request, asyncio.get_running_loop().time() + timeout_s)
        sequence.arm(_DEADLINE, timeout_s, DeadlineExceeded("the time for this request is over"))
        self._sequences[sequence.sequence_id] = sequence
        self._unsent[sequence.sequence_id] = sequence
        self._opened_s[sequence.sequence_id] = asyncio.get_running_loop().time()
        self._tell_open_requests()
        if self.is_ready:
            self._flush_soon()
        else:
            self._arm_loss(sequence)
        return sequence

    def close(self, sequence: Sequence) -> None:
        """Forget a sequence, and abort it unless it is over at the home. May be called again."""
        if self._sequences.pop(sequence.sequence_id, None) is None:
            return
        for reason in (_LOST, _DEADLINE):
            sequence.disarm(reason)
        if self._unsent.pop(sequence.sequence_id, None) is None and sequence.ending is None and self.is_ready:
            self._aborted.append(sequence.sequence_id)
            self._flush_soon()
        self._opened_s.pop(sequence.sequence_id, None)
        self._tell_open_requests()
        if self.watcher is not None:
            self.watcher.on_end(len(sequence.token_ids))

    async def prompt_logprobs(
        self, token_ids: SequenceOf[int], num_logprobs: int, timeout_s: float, traceparent: str = ""
    ) -> list[common_pb2.TokenLogprobs]:
        """What the largest model thinks of each token of a prompt but the first.

        Raises:
            AllroadsError: a service is out of reach, refuses, or does not answer in time.
        """
        request = model_pb2.PromptLogprobsRequest(token_ids=token_ids, num_logprobs=num_logprobs)
        try:
            metadata = metadata_of(traceparent)
            response = await self._stub.GetPromptLogprobs(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED:
                # Not by us, who would have got no answer at all.
                raise Unavailable("a service stopped before it had read the prompt", retry_after_s=1.0) from error
            raise from_rpc(error, "slm") from error
        if len(response.logprobs) != len(token_ids) - 1:
            raise Internal("the small model's service left log-probabilities out: is it of this version?")
        return list(response.logprobs)

    def set_launches(self, launches: SequenceOf[model_pb2.LaunchThreshold]) -> None:
        """Tell larger tiers when to launch: now, and again whenever the home comes back."""
        self._launches = list(launches)
        self._launches_are_unsent = True
        if self.is_ready:
            self._flush_soon()

    def fail_all(self, error: AllroadsError) -> None:
        """End every open sequence, such as at a stop."""
        for sequence in list(self._sequences.values()):
            sequence.fail(error)

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if not self.is_ready:
            return
        if self._launches_are_unsent:
            self._send_launches()
        if not (self._unsent or self._aborted):
            return
        opens, aborted = list(self._unsent.values()), self._aborted
        self._unsent, self._aborted = {}, []
        self._send(opens, aborted)

    def _send_launches(self) -> None:
        """In a message of their own: a request that is too big must not keep them."""
        self._launches_are_unsent = False
        try:
            self._stream.send(model_pb2.GenerateRequest(launches=self._launches))
        except AllroadsError as error:
            # A stream that takes nothing ends, and what comes after it is told anew.
            logger.warning("slm: launch thresholds are not sent: %s", error.message)

    def _send(self, opens: list[Sequence], aborted: list[int]) -> None:
        """In one message, or one by one where that is too big: only an open that is too big by itself fails."""
        opened = [sequence.to_open() for sequence in opens]
        try:
            self._stream.send(model_pb2.GenerateRequest(opens=opened, aborted_sequence_ids=aborted))
        except AllroadsError as error:
            if isinstance(error, InvalidArgument) and len(opens) + bool(aborted) > 1:
                for sequence in opens:
                    self._send([sequence], [])
                self._send([], aborted)
                return
            for sequence in opens:
                sequence.fail(error)

    def _on_up(self) -> None:
        self._greeting = asyncio.create_task(self._greet(), name="describe slm")

    def _on_down(self, error: AllroadsError) -> None:
        self._stop_greeting()
        self._aborted.clear()
        self.is_ready = False
        for sequence in self._sequences.values():
            self._arm_loss(sequence)
        self._on_change()

    def _on_response(self, response: model_pb2.GenerateResponse) -> None:
        for delivery in cut(response):
            if (sequence := self._sequences.get(delivery.sequence_id)) is None:
                continue
            if not delivery.is_whole:
                sequence.fail(Internal("the small model's service left log-probabilities out: is it of this version?"))
            elif max(delivery.tiers, default=0) >= MAX_TIERS:
                sequence.fail(Internal("the small model's service told of a tier that no mesh has"))
            else:
                if not sequence.token_ids:
                    self._tell_first_token(sequence)
                sequence.deliver(delivery)
                self._waker.add(sequence)
        for finished in response.finished:
            if (sequence := self._sequences.get(finished.sequence_id)) is not None:
                sequence.end(Ending(finished.reason == common_pb2.FINISH_REASON_STOP, finished.usage))
        for failed in response.errors:
            if (sequence := self._sequences.get(failed.sequence_id)) is not None:
                sequence.fail(from_wire(failed.error))
        if response.HasField("load"):
            self.load = response.load
        if response.reports and self.watcher is not None:
            self.watcher.on_reports(response.reports)
        self._waker.wake_soon()

    async def _greet(self) -> None:
        """Ask who is there; a home that fits gets every open sequence."""
        description = await self._describe()
        if description.tokenizer_hash != self._tokenizer_hash:
            logger.error(
                "slm serves %r with another tokenizer than the gateway's: not ready; give both the same slm.path",
                description.model_id,
            )
            self.mesh = None
        elif not are_tier_names(description.mesh.tier_names):
            logger.error(
                "slm names its tiers %s, and a mesh has 2 to %d of different names: not ready; is it of this version?",
                list(description.mesh.tier_names)[: MAX_TIERS + 1],
                MAX_TIERS,
            )
            self.mesh = None
        else:
            self.mesh, self.is_ready = description.mesh, True
            for sequence in self._sequences.values():
                sequence.disarm(_LOST)
                sequence.end_if_complete(self.mesh.eos_token_ids)
            self._unsent = {key: sequence for key, sequence in self._sequences.items() if not sequence.is_over}
            self._launches_are_unsent = bool(self._launches)
            self._flush_soon()
        self._on_change()

    async def _describe(self) -> model_pb2.DescribeResponse:
        while True:
            try:
                return await self._stub.Describe(model_pb2.DescribeRequest(), timeout=_DESCRIBE_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                logger.warning("slm: cannot describe itself: %s", error.details())
            await asyncio.sleep(_DESCRIBE_PAUSE_S)

    def _tell_open_requests(self) -> None:
        if self.watcher is not None:
            self.watcher.on_open_requests(len(self._sequences))

    def _tell_first_token(self, sequence: Sequence) -> None:
        opened_s = self._opened_s.pop(sequence.sequence_id, None)
        if opened_s is not None and self.watcher is not None:
            seconds = asyncio.get_running_loop().time() - opened_s
            self.watcher.on_first_token(seconds, len(sequence.request.prompt_token_ids))

    def _arm_loss(self, sequence: Sequence) -> None:
        limit_s = self._home_timeout_s
        message = f"the small model's service is out of reach, and did not come back within {limit_s:g} s"
        sequence.arm(_LOST, limit_s, Unavailable(message, retry_after_s=limit_s))

    def _stop_greeting(self) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
            self._greeting = None

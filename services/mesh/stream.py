"""The long-lived bidirectional stream between two services, at both of its ends.

The caller's end comes back by itself after the peer was lost, and tells when it is up and when it is
down. The server's end writes what a service puts in its outbox. Both queues are bounded.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar, cast

import grpc
from google.protobuf.message import Message

from ..errors import AllroadsError, InvalidArgument, ResourceExhausted, Unavailable
from .status import from_rpc

logger = logging.getLogger(__name__)

MessageT = TypeVar("MessageT")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

MAX_QUEUED_MESSAGES = 4096
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.3


class Outbox(Generic[MessageT]):
    """A bounded queue of messages on their way to a peer. Belongs to one event loop."""

    def __init__(self, maxsize: int = MAX_QUEUED_MESSAGES) -> None:
        self._queue: asyncio.Queue[MessageT | None] = asyncio.Queue(maxsize)
        self._error: AllroadsError | None = None

    def put(self, message: MessageT) -> None:
        """Queue a message.

        Raises:
            ResourceExhausted: the peer does not keep up; its stream should be ended.
        """
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            raise ResourceExhausted(f"{self._queue.maxsize} messages wait for a peer that does not read") from None

    def close(self, error: AllroadsError) -> None:
        """End the stream with an error instead of what still waits."""
        self._error = error
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    async def messages(self) -> AsyncIterator[MessageT]:
        """Messages in order, without end.

        Raises:
            AllroadsError: the one that the outbox was closed with.
        """
        while (message := await self._queue.get()) is not None:
            yield message
        if self._error is not None:
            raise self._error


class PeerStream(Generic[RequestT, ResponseT]):
    """The caller's end: connects, reconnects, and never blocks whoever sends.

    `on_up` is called when the peer's handler has answered, `on_response` for each message, `on_down`
    once for each loss of a stream that was up. All three run in the event loop and must not block.
    What was queued when a stream is lost is dropped: `on_up` says what the new one must be told.
    So a peer that does not keep up loses its stream: nothing of it may be missing.
    `max_message_bytes` is the channel's own limit; without it, no message is checked before it is sent.
    """

    def __init__(
        self,
        name: str,
        open_call: Callable[[], "grpc.aio.StreamStreamCall[RequestT, ResponseT]"],
        *,
        on_up: Callable[[], None],
        on_response: Callable[[ResponseT], None],
        on_down: Callable[[AllroadsError], None],
        max_message_bytes: int | None = None,
    ) -> None:
        self.name = name
        self._max_message_bytes = max_message_bytes
        self._open_call = open_call
        self._on_up, self._on_response, self._on_down = on_up, on_response, on_down
        self._outbox: Outbox[RequestT] | None = None
        self._call: grpc.aio.StreamStreamCall[RequestT, ResponseT] | None = None
        self._given_up: ResourceExhausted | None = None
        """Why the stream is being ended by ourselves."""

    @property
    def is_up(self) -> bool:
        """Whether a message sent now goes to a peer that is there."""
        return self._outbox is not None

    def send(self, message: RequestT) -> None:
        """Queue a message for the peer.

        Raises:
            Unavailable: the peer is out of reach.
            InvalidArgument: the message is over the limit. On the wire it would end the stream and all it carries.
            ResourceExhausted: the peer does not keep up; its stream is ended.
        """
        if self._outbox is None:
            raise Unavailable(f"{self.name} is out of reach")
        limit = self._max_message_bytes
        if limit is not None and (size := message.ByteSize()) > limit:
            raise InvalidArgument(
                f"a message to {self.name} of {size} bytes is over the limit of {limit}; raise max_message_bytes"
            )
        try:
            self._outbox.put(message)
        except ResourceExhausted as error:
            self._given_up = self._given_up or error
            if self._call is not None:
                self._call.cancel()
            raise

    async def run(self) -> None:
        """Keep the stream until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            self._given_up = None
            was_up = await self._run_once()
            pause_s = _FIRST_PAUSE_S if was_up else min(2 * pause_s, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> bool:
        """One stream from its start to its loss. Whether it was up."""
        call = self._call = self._open_call()
        writer: asyncio.Task[None] | None = None
        error: AllroadsError = Unavailable(f"{self.name} ended the stream")
        try:
            await call.wait_for_connection()
            outbox: Outbox[RequestT] = Outbox()
            self._outbox = outbox
            logger.info("%s: connected", self.name)
            self._on_up()
            writer = asyncio.create_task(self._write(call, outbox), name=f"write to {self.name}")
            while (response := await call.read()) is not grpc.aio.EOF:
                self._on_response(cast("ResponseT", response))
        except grpc.aio.AioRpcError as rpc_error:
            error = from_rpc(rpc_error, self.name)
        except asyncio.CancelledError:
            # A call that was cancelled by ourselves looks as if this task were.
            task = asyncio.current_task()
            if self._given_up is None or (task is not None and task.cancelling()):
                raise
            error = Unavailable(f"{self.name} does not keep up: {self._given_up.message}")
        finally:
            call.cancel()
            if writer is not None:
                writer.cancel()
                # Not `await writer`: a cancel of our own that comes now could not be told from the writer's.
                await asyncio.wait({writer})
            was_up, self._outbox = self._outbox is not None, None
        if was_up:
            logger.warning("%s: lost: %s", self.name, error.message)
            self._on_down(error)
        return was_up

    async def _write(self, call: "grpc.aio.StreamStreamCall[RequestT, ResponseT]", outbox: Outbox[RequestT]) -> None:
        try:
            async for message in outbox.messages():
                await call.write(message)
        except grpc.aio.AioRpcError:
            call.cancel()
        except asyncio.InvalidStateError:
            # The call ended between two writes; the reader reports why.
            call.cancel()


async def serve_stream(
    context: "grpc.aio.ServicerContext[RequestT, ResponseT]",
    requests: AsyncIterator[RequestT],
    outbox: Outbox[ResponseT],
    on_request: Callable[[RequestT], None],
) -> None:
    """The server's end: hand each request to `on_request`, write what lies in the outbox.

    Returns when the caller half-closes or is gone. An `AllroadsError` from `on_request` ends the stream.
    """
    await context.send_initial_metadata(())
    reader = asyncio.create_task(_read(requests, on_request), name="read requests")
    writer = asyncio.create_task(_write(context, outbox), name="write responses")
    try:
        done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (reader, writer):
            task.cancel()
        await asyncio.gather(reader, writer, return_exceptions=True)


async def _read(requests: AsyncIterator[RequestT], on_request: Callable[[RequestT], None]) -> None:
    async for request in requests:
        on_request(request)


async def _write(context: "grpc.aio.ServicerContext[RequestT, ResponseT]", outbox: Outbox[ResponseT]) -> None:
    async for message in outbox.messages():
        await context.write(message)

"""A reply as an event stream, exactly in the order that clients depend on.

First the role, then text, then a chunk with the finish reason for each choice, then usage for those who
asked, then `[DONE]`. A failure after the first byte is one error event and `[DONE]`, with no finish reason.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from ...errors import AllroadsError
from .choices import Choices, NumberedPiece
from .errors import error_event, internal_error
from .reply import DONE, Reply

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15
"""A comment is sent after so long, and the stream is opened without its first token."""

FirstPiece = asyncio.Task[NumberedPiece]


async def await_first(choices: Choices) -> FirstPiece:
    """Wait for the first piece, so that a failure before it gets a proper status, but not for ever.

    Raises:
        AllroadsError: the reply failed before its first piece.
    """
    first: FirstPiece = asyncio.ensure_future(_next(choices))
    try:
        done, _ = await asyncio.wait({first}, timeout=KEEP_ALIVE_S)
    except asyncio.CancelledError:
        first.cancel()
        raise
    if done:
        first.result()
    return first


class EventStream(EventSourceResponse):
    """Sends a reply's chunks, and closes its choices however that ends."""

    def __init__(
        self, reply: Reply, choices: Choices, first: FirstPiece, *, include_usage: bool, reader_timeout_s: float
    ) -> None:
        super().__init__(
            _events(reply, choices, first, include_usage=include_usage),
            ping=KEEP_ALIVE_S,
            ping_message_factory=lambda: ServerSentEvent(comment="keep-alive", sep="\n"),
            send_timeout=reader_timeout_s,
        )
        self._choices, self._first = choices, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; a reader that takes nothing for too long is cut off."""
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            logger.warning("a client took nothing for too long and is cut off")
            # A close would wait for the reader to take what lies in the buffer.
            if (abort := scope.get("state", {}).get("abort")) is not None:
                abort()
        finally:
            # The generator's own clean-up does not run where it was never started.
            self._first.cancel()
            await self._choices.close()


async def _events(reply: Reply, choices: Choices, first: FirstPiece, *, include_usage: bool) -> AsyncIterator[bytes]:
    try:
        for index in range(len(choices.generations)):
            if head := reply.first_chunk(index, choices.generations[index]):
                yield head
        numbered: NumberedPiece | None = await first
        while numbered is not None:
            index, piece = numbered
            if chunk := reply.chunk(index, piece, choices.generations[index]):
                yield chunk
            if piece.finish_reason is not None:
                yield reply.finish_chunk(index, choices.generations[index])
            numbered = await anext(choices, None)
        if include_usage:
            yield reply.usage_chunk(choices.generations)
    except AllroadsError as error:
        yield error_event(error)
    except Exception:  # the client must not take a fault of ours for a short answer
        logger.exception("a stream failed")
        yield error_event(internal_error())
    yield DONE


async def _next(choices: Choices) -> NumberedPiece:
    return await anext(choices)

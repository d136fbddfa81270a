"""The open streams of a model service, each with the outbox that its responses go through."""

import logging
from collections.abc import Callable, Mapping
from itertools import count
from typing import Generic, TypeVar

from ..errors import ResourceExhausted
from ..mesh.stream import Outbox

logger = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT")


class Streams(Generic[ResponseT]):
    """Knows who listens. `on_left` is called once for each stream that is over. Belongs to the event loop."""

    def __init__(self, on_left: Callable[[int], None]) -> None:
        self._on_left = on_left
        self._ids = count(1)
        self._outboxes: dict[int, Outbox[ResponseT]] = {}

    def join(self, outbox: Outbox[ResponseT]) -> int:
        """A new stream, whose responses go into the outbox; its id."""
        stream_id = next(self._ids)
        self._outboxes[stream_id] = outbox
        return stream_id

    def leave(self, stream_id: int) -> None:
        """The stream is over. Harmless when repeated."""
        if self._outboxes.pop(stream_id, None) is not None:
            self._on_left(stream_id)

    def deliver(self, responses: Mapping[int, ResponseT]) -> None:
        """Write a response to each stream. One that is gone is not told; one that does not read is ended."""
        for stream_id, response in responses.items():
            if (outbox := self._outboxes.get(stream_id)) is None:
                continue
            try:
                outbox.put(response)
            except ResourceExhausted as error:
                logger.warning("stream %d is ended: %s", stream_id, error.message)
                self.leave(stream_id)
                outbox.close(error)

"""The client loop: opens, aborts, deadlines and launch thresholds of the gateways."""

import asyncio
from collections.abc import Callable, Mapping

from ..errors import DeadlineExceeded, Unavailable
from ..mesh.status import to_wire
from ..mesh.tracing import OFF, Tracer
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2
from ..model.streams import Streams
from .commands import Abort, Command, Open, StreamClosed, WishLaunches


class Clients:
    """Hands the requests of all streams to the decode loop, and its answers back. Belongs to the event loop."""

    def __init__(self, post: Callable[[Command], None], tracer: Tracer = OFF) -> None:
        self.streams: Streams[model_pb2.GenerateResponse] = Streams(self._on_left)
        self._post = post
        self._tracer = tracer
        self._deadlines: dict[tuple[int, int], asyncio.TimerHandle] = {}
        self._refusing = False

    def refuse_new(self) -> None:
        """Take no more requests: the service stops."""
        self._refusing = True

    def take(self, stream_id: int, request: model_pb2.GenerateRequest) -> None:
        """Hand what a message brings to the decode loop."""
        if request.launches:
            self._post(WishLaunches(stream_id, request.launches))
        for wire in request.opens:
            if self._refusing:
                self._refuse(stream_id, wire.sequence_id)
                continue
            if (span := self._tracer.join("slm", wire.traceparent)) is not None:
                wire.traceparent = span.context.traceparent
            self._post(Open(stream_id, wire, span))
            if wire.timeout_ms:
                self._deadlines[stream_id, wire.sequence_id] = asyncio.get_running_loop().call_later(
                    wire.timeout_ms / 1000, self._expire, stream_id, wire.sequence_id
                )
        for sequence_id in request.aborted_sequence_ids:
            self._forget_deadline(stream_id, sequence_id)
            self._post(Abort(stream_id, sequence_id))

    def deliver(self, responses: Mapping[int, model_pb2.GenerateResponse]) -> None:
        """Write what a turn of the decode loop has to say."""
        for stream_id, response in responses.items():
            for sequence_id in (*(f.sequence_id for f in response.finished), *(e.sequence_id for e in response.errors)):
                self._forget_deadline(stream_id, sequence_id)
        self.streams.deliver(responses)

    def _on_left(self, stream_id: int) -> None:
        self._post(StreamClosed(stream_id))
        for key in [key for key in self._deadlines if key[0] == stream_id]:
            self._deadlines.pop(key).cancel()

    def _expire(self, stream_id: int, sequence_id: int) -> None:
        self._deadlines.pop((stream_id, sequence_id), None)
        self._post(Abort(stream_id, sequence_id, DeadlineExceeded("the request's time is over")))

    def _forget_deadline(self, stream_id: int, sequence_id: int) -> None:
        if (timer := self._deadlines.pop((stream_id, sequence_id), None)) is not None:
            timer.cancel()

    def _refuse(self, stream_id: int, sequence_id: int) -> None:
        error = to_wire(Unavailable("the service is stopping"))
        self.deliver(
            {stream_id: model_pb2.GenerateResponse(errors=[pb.SequenceError(sequence_id=sequence_id, error=error)])}
        )

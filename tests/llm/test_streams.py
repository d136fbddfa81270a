"""Streams of a model service: those that are gone, and those that do not read."""

import pytest
from allroads.errors import ResourceExhausted
from allroads.mesh.stream import Outbox
from allroads.model.streams import Streams


async def test_a_stream_that_does_not_read_is_ended_and_its_neighbour_is_not() -> None:
    left: list[int] = []
    streams: Streams[str] = Streams(left.append)
    slow, good = Outbox[str](maxsize=2), Outbox[str](maxsize=8)
    slow_id, good_id = streams.join(slow), streams.join(good)
    for message in ("a", "b", "c"):
        streams.deliver({slow_id: message, good_id: message})
    assert left == [slow_id]
    with pytest.raises(ResourceExhausted):
        await anext(slow.messages())
    assert [await anext(good.messages()) for _ in range(3)] == ["a", "b", "c"]
    streams.leave(slow_id)
    streams.deliver({slow_id: "d"})
    assert left == [slow_id]

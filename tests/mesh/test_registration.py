"""A peer's offer of a region is tried without holding up the event loop, and leaves nothing behind."""

import asyncio

import pytest
import torch
from allroads.errors import AllroadsError, InvalidArgument
from allroads.mesh.process_memory import ProcessMemoryTransport
from allroads.mesh.registration import Registration
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.tensors import inline_reference
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire.common_pb2 import Registered

from ..doubles.slow_transport import SlowTransport


class Stream:
    """One stream's end, and what it says to the peer."""

    def __init__(self, transport: ProcessMemoryTransport) -> None:
        self.sender = TensorSender("router", slot_bytes=64, transports=[transport])
        self.receiver = TensorReceiver("home", [transport])
        self.answers: asyncio.Queue[Registered] = asyncio.Queue()
        self.failures: asyncio.Queue[AllroadsError] = asyncio.Queue()
        self.registration = Registration(self.receiver, self.answers.put_nowait, self.failures.put_nowait)

    def offer(self) -> pb.Region:
        region = self.sender.open()
        assert region is not None
        return region


@pytest.fixture
def slow() -> Stream:
    transport = SlowTransport()
    transport.go.set()
    stream = Stream(transport)
    stream.sender.open()
    return stream


def transport_of(stream: Stream) -> SlowTransport:
    transport = stream.receiver._transports["local"]
    assert isinstance(transport, SlowTransport)
    return transport


def hold(stream: Stream) -> SlowTransport:
    transport = transport_of(stream)
    transport.go.clear()
    transport.begun = type(transport.begun)()
    return transport


async def test_what_never_waits_is_answered_at_once() -> None:
    stream = Stream(ProcessMemoryTransport())
    stream.registration.take(stream.offer())
    assert stream.answers.get_nowait().transport == pb.TRANSPORT_LOCAL
    await stream.registration.close()


async def test_batches_are_read_while_a_region_is_tried(slow: Stream) -> None:
    region = slow.offer()
    transport = hold(slow)
    slow.registration.take(region)
    await asyncio.wrap_future(transport.begun)
    read = slow.receiver.read([inline_reference(torch.ones(3))])
    assert read.tensors[0].tolist() == [1] * 3
    assert slow.receiver.withdrawal() is None
    assert slow.answers.empty()
    with pytest.raises(InvalidArgument, match="one region at a time"):
        slow.registration.take(region)
    transport.go.set()
    answer = await asyncio.wait_for(slow.answers.get(), 30)
    assert slow.sender.on_registered(answer) is None
    references = slow.sender.pack(1, [torch.ones(2)])
    assert references[0].HasField("slice")
    assert slow.receiver.read(references).tensors[0].tolist() == [1, 1]
    slow.registration.take(slow.offer())
    assert (await asyncio.wait_for(slow.answers.get(), 30)).transport == pb.TRANSPORT_LOCAL
    await slow.registration.close()
    assert len(transport.closed) == 2


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_stream_that_ends_meanwhile_keeps_no_region(slow: Stream, *, is_cancelled: bool) -> None:
    region = slow.offer()
    transport = hold(slow)
    slow.registration.take(region)
    await asyncio.wrap_future(transport.begun)
    closing = asyncio.create_task(slow.registration.close())
    await asyncio.sleep(0)
    assert not closing.done()
    if is_cancelled:
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    transport.go.set()
    await asyncio.wait_for(slow.answers.get(), 30)
    if not is_cancelled:
        await asyncio.wait_for(closing, 30)
    await asyncio.sleep(0)
    assert len(transport.closed) == 1


async def test_an_offer_that_turns_out_wrong_ends_the_stream(slow: Stream) -> None:
    region = slow.offer()
    region.size_bytes += 16
    slow.registration.take(region)
    failure = await asyncio.wait_for(slow.failures.get(), 30)
    assert isinstance(failure, InvalidArgument)
    await slow.registration.close()

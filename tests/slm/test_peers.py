"""What is for a larger tier and does not fit one message goes in several; regions are agreed on beside all else."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from allroads.engine.engine import ModelFacts
from allroads.errors import InvalidArgument, Unavailable
from allroads.mesh.cuda_ipc import CudaIpcTransport
from allroads.mesh.process_memory import ProcessMemoryTransport
from allroads.mesh.region_transport import RegionTransport
from allroads.mesh.wire import common_pb2, model_pb2, router_pb2
from allroads.slm.commands import Command, Scored, Visited
from allroads.slm.peers import RouterPeer, TierPeer
from allroads.vocabulary import Vocabulary

from ..doubles.shared_device import SharedDevice
from ..doubles.slow_transport import SlowTransport

FACTS = ModelFacts(
    model_id="tiny",
    vocabulary=Vocabulary(("a", "b"), {}, ()),
    num_output_rows=2,
    hidden_size=4,
    num_parameters=8,
    max_context=16,
    kv_bytes_per_token=1,
)
BIG = model_pb2.HandOff(sequence_id=3, unseen_token_ids=range(100))


async def test_what_is_too_big_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[Command] = []
    sent: list[model_pb2.VisitRequest] = []

    def send(message: model_pb2.VisitRequest) -> None:
        if message.ByteSize() > 40:
            raise InvalidArgument("too big")
        sent.append(message)

    peer = TierPeer("llm", 1, "unix:/nowhere", 1 << 20, FACTS, posted.append)
    monkeypatch.setattr(peer._stream, "send", send)
    launch = model_pb2.LaunchThreshold(tier=1, num_visits=4, flush_timeout_us=9)
    small = [model_pb2.HandOff(sequence_id=number, unseen_token_ids=range(20)) for number in (1, 2)]
    peer.visit(model_pb2.VisitRequest(hand_offs=[*small, BIG], closed_sequence_ids=[7], launch=launch))
    assert sent == [
        model_pb2.VisitRequest(launch=launch),
        model_pb2.VisitRequest(hand_offs=small[:1]),
        model_pb2.VisitRequest(hand_offs=small[1:]),
        model_pb2.VisitRequest(closed_sequence_ids=[7]),
    ]
    sent.clear()
    peer.visit(model_pb2.VisitRequest(hand_offs=[BIG], launch=launch))
    assert sent == [model_pb2.VisitRequest(launch=launch)]
    failed = [error.sequence_id for one in posted if isinstance(one, Visited) for error in one.response.errors]
    assert failed == [3, 3]
    await peer.close()


class Router:
    """A router's peer that tries these transports, and all that it says on its stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, transports: Sequence[RegionTransport]) -> None:
        monkeypatch.setattr("allroads.mesh.tensor_sender.transports_for", lambda device: tuple(transports))
        self.posted: list[Command] = []
        self.sent: asyncio.Queue[router_pb2.ScoreRequest] = asyncio.Queue()
        self.peer = RouterPeer("unix:/nowhere", 1 << 20, FACTS, self.posted.append)
        monkeypatch.setattr(self.peer._stream, "send", self.sent.put_nowait)

    async def offered(self) -> common_pb2.Region:
        return (await asyncio.wait_for(self.sent.get(), 30)).register


async def test_a_region_that_takes_long_to_make_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = SlowTransport()
    router = Router(monkeypatch, [transport])
    router.peer._agree(router.peer.sender.open)
    await asyncio.wrap_future(transport.begun)
    assert router.sent.empty()
    assert router.peer.sender.pack(1, [torch.ones(2)])[0].HasField("inline")
    transport.go.set()
    assert (await router.offered()).region_id == 1
    await router.peer.close()
    assert not transport.regions


@pytest.mark.parametrize("ends_by", ["loss", "stop"])
async def test_what_is_made_for_a_stream_that_is_gone_comes_to_nothing(
    monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    transport = SlowTransport()
    router = Router(monkeypatch, [transport])
    router.peer._agree(router.peer.sender.open)
    await asyncio.wrap_future(transport.begun)
    if ends_by == "loss":
        router.peer._on_down(Unavailable("gone"))
    closing = asyncio.create_task(router.peer.close())
    await asyncio.sleep(0)
    transport.go.set()
    await asyncio.wait_for(closing, 30)
    assert router.sent.empty()
    assert (len(transport.made), transport.regions) == (1, 0)


async def test_what_never_waits_is_offered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(monkeypatch, [ProcessMemoryTransport()])
    router.peer._agree(router.peer.sender.open)
    assert router.sent.get_nowait().register.region_id == 1
    await router.peer.close()


async def test_after_a_region_was_given_up_the_next_kind_is_offered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = SharedDevice(tmp_path)
    router = Router(monkeypatch, [CudaIpcTransport(lambda: here), ProcessMemoryTransport()])
    router.peer._agree(router.peer.sender.open)
    region = await router.offered()
    assert region.WhichOneof("kind") == "cuda_ipc"
    owned = router.peer.sender._region
    assert owned is not None
    monkeypatch.setattr(owned, "confirm", lambda: None)
    registered = common_pb2.Registered(region_id=1, transport=common_pb2.TRANSPORT_CUDA_IPC)
    router.peer._on_response(router_pb2.ScoreResponse(registered=registered))
    await asyncio.wait(router.peer._agreeing)
    assert router.peer.sender.pack(1, [torch.ones(2)])[0].HasField("slice")
    monkeypatch.setattr(owned, "fault", "the peer's acknowledge word did not come")
    references = await asyncio.to_thread(router.peer.sender.pack, 2, [torch.ones(2)])
    assert references[0].HasField("inline")
    assert (await router.offered()).WhichOneof("kind") == "local"
    await router.peer.close()


async def test_a_batch_that_is_too_big_to_send_holds_nobody_up_later(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(monkeypatch, [])
    retracted: list[common_pb2.TensorRef] = []
    monkeypatch.setattr(router.peer.sender, "retract", retracted.extend)

    def refuse(message: router_pb2.ScoreRequest) -> None:
        raise InvalidArgument("too big")

    monkeypatch.setattr(router.peer._stream, "send", refuse)
    place = common_pb2.TensorRef(slice=common_pb2.RegionSlice(region_id=1, generation=7))
    router.peer.score([router_pb2.ScoreBatch(batch_id=3, top_logits=place)])
    assert retracted[0] == place
    (failed,) = router.posted
    assert isinstance(failed, Scored)
    assert failed.scores.batch_id == 3
    await router.peer.close()


@pytest.mark.parametrize(("num_tokens", "num_drafts"), [(151_936, 8), (128_256, 8), (262_144, 5)])
async def test_so_many_drafts_of_a_vocabulary_fit_a_slot(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, num_drafts: int
) -> None:
    monkeypatch.setattr(Vocabulary, "__len__", lambda vocabulary: num_tokens)
    transport = ProcessMemoryTransport()
    monkeypatch.setattr("allroads.mesh.tensor_sender.transports_for", lambda device: (transport,))
    peer = TierPeer("llm", 1, "unix:/nowhere", 1 << 20, FACTS, lambda command: None)
    sender = peer.sender
    assert sender.open() is not None
    sender.on_registered(common_pb2.Registered(region_id=1, transport=common_pb2.TRANSPORT_LOCAL))
    assert sender.pack(1, [torch.empty(num_drafts, num_tokens)])[0].HasField("slice")
    await peer.close()

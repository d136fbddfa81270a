"""Regions of GPU memory on a GPU: the same protocol as in `test_cuda_regions.py`, between two processes."""

import mmap
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from allroads.cuda.ipc import CudaIpcDevice, find_ipc_device
from allroads.errors import Unavailable
from allroads.mesh.cuda_ipc import CudaIpcTransport
from allroads.mesh.process_memory import ProcessMemoryTransport
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.wire import common_pb2 as pb

from ..doubles.region_peers import ROOT, RegionPeer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

LIMIT_S = 1.0
VALUES = [1.5, -0.0, 65504.0, -3.25]


@pytest.fixture
def device() -> CudaIpcDevice:
    return find_ipc_device(0)


@pytest.fixture
def peer() -> Iterator[RegionPeer]:
    peer = RegionPeer("cuda", LIMIT_S)
    yield peer
    peer.kill()


@pytest.fixture
def sender(device: CudaIpcDevice, peer: RegionPeer) -> Iterator[TensorSender]:
    """One whose region the peer has."""
    transports = [CudaIpcTransport(lambda: device, LIMIT_S)]
    sender = TensorSender("peer", slot_bytes=1 << 20, num_slots=2, transports=transports)
    region = sender.open()
    assert region is not None
    answer = pb.Registered.FromString(peer.message("register", region.SerializeToString().hex()))
    assert answer.transport == pb.TRANSPORT_CUDA_IPC, answer.reason
    assert sender.on_registered(answer) is None
    yield sender
    sender.close()


@pytest.fixture
def receiver(device: CudaIpcDevice, peer: RegionPeer) -> Iterator[TensorReceiver]:
    """One that has the peer's region."""
    receiver = TensorReceiver("home", [CudaIpcTransport(lambda: device, LIMIT_S)])
    answer = receiver.register(pb.Region.FromString(peer.message("offer")))
    assert answer.transport == pb.TRANSPORT_CUDA_IPC, answer.reason
    assert peer.ask("registered", answer.SerializeToString().hex()) is True
    yield receiver
    receiver.close()


def packed(peer: RegionPeer, batch_id: int) -> pb.TensorRef:
    reference = pb.TensorRef.FromString(peer.message("pack", repr(VALUES).encode().hex(), str(batch_id)))
    assert reference.WhichOneof("location") == "slice"
    return reference


def test_values_arrive_and_stay_on_the_device(receiver: TensorReceiver, peer: RegionPeer) -> None:
    received = receiver.read([packed(peer, 1)])
    (tensor,) = received.tensors
    received.join()
    assert tensor.is_cuda
    want = torch.tensor(VALUES)
    assert torch.equal(tensor.cpu().view(torch.int32), want.view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_packing_and_reading_wait_for_nothing_on_the_host(
    sender: TensorSender, peer: RegionPeer, device: CudaIpcDevice, dtype: torch.dtype
) -> None:
    sent = torch.randn(64, 128, device=device.torch_device).to(dtype).T
    for batch_id in range(6):  # two slots: also where their former leases are looked at
        torch.cuda.set_sync_debug_mode("error")
        try:
            (reference,) = sender.pack(batch_id, [sent])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert reference.WhichOneof("location") == "slice"
        got = peer.ask("read", reference.SerializeToString().hex())
        assert got == [[str(value) for value in row] for row in sent.tolist()]
        sender.release(batch_id)


def test_a_lease_that_is_over_reads_as_nan(receiver: TensorReceiver, peer: RegionPeer) -> None:
    old = packed(peer, 1)
    stale = pb.TensorRef.FromString(old.SerializeToString())
    received = receiver.read([old])
    received.join()
    stale.slice.generation = 0xFFFFFFFF  # in cyclic order before what is there: nobody waits
    late = receiver.read([stale])
    late.join()
    assert not received.tensors[0].isnan().any()
    assert late.tensors[0].isnan().all()


def test_a_writer_that_is_killed_leaves_nan(receiver: TensorReceiver, peer: RegionPeer) -> None:
    peer.ask("stall")
    lost = packed(peer, 1)
    peer.kill()
    received = receiver.read([lost])
    received.join()
    assert received.tensors[0].isnan().all()
    assert receiver.withdrawal() is not None


def test_a_reader_that_is_killed_does_not_stop_its_writer(
    sender: TensorSender, peer: RegionPeer, device: CudaIpcDevice
) -> None:
    peer.kill()
    sent = torch.ones(8, device=device.torch_device)
    ways = []
    for batch_id in range(4):
        ways += [reference.WhichOneof("location") for reference in sender.pack(batch_id, [sent])]
        sender.release(batch_id)
    torch.cuda.synchronize()  # nothing waits
    assert ways == ["slice", "slice", "inline", "inline"]


def test_a_handle_cannot_be_opened_where_it_was_made(device: CudaIpcDevice) -> None:
    memory = device.allocate(1 << 20)
    with pytest.raises(Unavailable, match="cuIpcOpenMemHandle failed"):
        device.open(memory.handle, memory.size_bytes)
    memory.close()


def test_memory_is_all_zero_and_its_size_is_known(device: CudaIpcDevice) -> None:
    memory = device.allocate(1000)
    assert memory.view(0, 1000).count_nonzero() == 0
    assert memory.view(0, 1000).device == device.torch_device
    memory.close()
    with pytest.raises(ValueError, match="closed"):
        memory.view(0, 1)


def test_host_and_device_see_each_other_write_words(device: CudaIpcDevice) -> None:
    words, lane = device.register(mmap.mmap(-1, mmap.PAGESIZE)), device.new_lane()
    memory = device.allocate(1 << 20)
    words.store(64, 5)
    lane.wait_word(words, 64, 5)
    lane.put_word(words, 128, 0xFFFFFFFF)
    lane.fetch(memory, 0, 4)
    assert words.load(128) == 0xFFFFFFFF
    memory.close()
    words.close()


@pytest.mark.parametrize("meanwhile", ["free", "load"])
def test_a_wait_can_be_ended_whatever_else_the_driver_is_asked_for(meanwhile: str) -> None:
    """It may wait for the whole device then: not with what the end of a wait needs in its hands."""
    command = [sys.executable, "-m", "tests.doubles.ended_wait", meanwhile]
    subprocess.run(command, cwd=ROOT, timeout=60, check=True)


def test_in_one_process_copies_stay_on_the_device_and_streams_wait_for_them() -> None:
    transports = [ProcessMemoryTransport()]
    sender = TensorSender("router", slot_bytes=1 << 22, transports=transports)
    receiver = TensorReceiver("home", transports)
    region = sender.open()
    assert region is not None
    sender.on_registered(receiver.register(region))
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        sent = torch.full((1 << 20,), 3.0, device="cuda:0")
        references = sender.pack(1, [sent])
        sent.zero_()
    with torch.cuda.stream(torch.cuda.Stream()):
        received = receiver.read(references)
        received.join()
        total = received.tensors[0].sum()
    assert total.item() == 3.0 * (1 << 20)
    sender.close()

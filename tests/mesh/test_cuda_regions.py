"""The lease protocol of GPU memory, run over a shared device that is none, and what may go wrong (C36, C37).

The transport and its state machine are the real ones; `tests/doubles/shared_device.py` stands in for the GPU.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from allroads.cuda.device_memory import DeviceMemory, IpcDevice, Lane
from allroads.errors import InvalidArgument, Unavailable
from allroads.mesh import cuda_regions
from allroads.mesh.cuda_ipc import CudaIpcTransport
from allroads.mesh.region_transport import FIRST_SLOT, HEADER, PROBE, READY, Received, RegionTransport
from allroads.mesh.shared_memory import SharedMemoryTransport
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.wire import common_pb2 as pb
from torch import Tensor

from ..doubles.region_peers import RegionPeer
from ..doubles.shared_device import SharedDevice

ROOT = Path(__file__).parents[2]
LIMIT_S = 0.2
LONG_S = 60.0
SLOT_BYTES = 4096


class Ends:
    """A sender and a receiver as if in two processes: each with its own transport and its own view of the device."""

    def __init__(self, directory: Path, limit_s: float = LONG_S, *, others: Sequence[RegionTransport] = ()) -> None:
        self.here, self.there = SharedDevice(directory), SharedDevice(directory)
        self.sender = TensorSender(
            "router",
            slot_bytes=SLOT_BYTES,
            num_slots=2,
            transports=[CudaIpcTransport(lambda: self.here, limit_s), *others],
        )
        self.receiver = TensorReceiver("home", [CudaIpcTransport(lambda: self.there, limit_s), *others])

    def join(self) -> pb.Region:
        region = self.sender.open()
        assert region is not None
        assert self.sender.on_registered(self.receiver.register(region)) is None
        return region

    def pack(self, batch_id: int, *tensors: Tensor) -> list[pb.TensorRef]:
        return [pb.TensorRef.FromString(ref.SerializeToString()) for ref in self.sender.pack(batch_id, tensors)]

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_regions, "GRACE_S", 0.0)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    ends = Ends(tmp_path)
    ends.join()
    yield ends
    ends.close()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Ends]:
    """Ends that soon give up a wait."""
    ends = Ends(tmp_path, LIMIT_S)
    ends.join()
    yield ends
    ends.close()


def arrived(received: Received) -> list[Tensor]:
    received.join()
    return received.tensors


def where(references: list[pb.TensorRef]) -> list[str | None]:
    return [reference.WhichOneof("location") for reference in references]


def all_nan(tensors: list[Tensor]) -> bool:
    return all(bool(tensor.isnan().all()) for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_are_bit_identical_and_whole_numbers_go_inline_beside_them(ends: Ends, dtype: torch.dtype) -> None:
    sent = torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-40, -3.25]).to(dtype)
    sent.view(torch.uint8)[2 * dtype.itemsize] = 1  # a NaN with a payload
    view, ids = torch.arange(24.0).reshape(4, 6).T, torch.arange(3)
    references = ends.pack(1, sent, ids, view, torch.tensor(2.5))
    assert where(references) == ["slice", "inline", "slice", "slice"]
    got = arrived(ends.receiver.read(references))
    assert torch.equal(got[0].view(torch.uint8), sent.view(torch.uint8))
    assert torch.equal(got[1], ids)
    assert torch.equal(got[2], view)
    assert got[3].item() == 2.5


def test_writer_and_reader_queue_the_protocol_and_wait_for_nothing_on_the_host(ends: Ends) -> None:
    lane = ends.here.current
    for batch_id in range(3):
        lane.queued.clear()
        ends.receiver.read(ends.pack(batch_id, torch.ones(4), torch.zeros(2)))
        ends.sender.release(batch_id)
        wait = ["wait_word", "mark"] if batch_id == 2 else []
        assert lane.queued == [*wait, *["put_word"] * 2, *["copy_in"] * 2, *["put_word"] * 3, "mark"]


def test_a_lease_lasts_until_the_answer_and_slots_are_used_again(ends: Ends) -> None:
    for batch_id in range(9):
        references = ends.pack(batch_id, torch.full((4,), float(batch_id)))
        assert where(references) == ["slice"]
        assert arrived(ends.receiver.read(references))[0].tolist() == [batch_id] * 4
        ends.sender.release(batch_id)
    ends.pack(10, torch.ones(1))
    ends.pack(11, torch.ones(1))
    assert where(ends.pack(12, torch.ones(1))) == ["inline"], "both slots are leased"
    assert where(ends.pack(13, torch.arange(3))) == ["inline"]


def test_a_late_reader_of_an_old_lease_gets_nan(ends: Ends) -> None:
    old = ends.pack(1, torch.zeros(8), torch.zeros(2, 2))
    first = arrived(ends.receiver.read(old))
    for batch_id in range(2, 4):
        ends.sender.release(batch_id - 1)
        arrived(ends.receiver.read(ends.pack(batch_id, torch.ones(8), torch.ones(2, 2))))
    assert all_nan(arrived(ends.receiver.read(old)))
    assert not all_nan(first), "what was read stays"


def test_a_writer_waits_for_a_reader_that_is_slow(ends: Ends) -> None:
    (reading,), gate = ends.there.lanes, ends.there.allocate(16)
    reading.wait_word(gate, 0, 1)
    received = []
    for batch_id in range(4):
        received.append(ends.receiver.read(ends.pack(batch_id, torch.full((4,), float(batch_id)))))
        ends.sender.release(batch_id)
    written = ends.here.current.mark()
    assert not written.is_reached(), "the slots of the first two are not free yet"
    gate.put_word(0, 1)
    assert [arrived(each)[0].tolist() for each in received] == [[float(i)] * 4 for i in range(4)]
    written.join([])


def test_a_writer_that_stops_before_it_is_ready_makes_nan_and_its_region_is_given_up(
    hasty: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    hasty.here.current.wait_word(hasty.here.allocate(16), 0, 1)
    references = hasty.pack(1, torch.ones(4))
    assert hasty.receiver.withdrawal() is None
    assert all_nan(arrived(hasty.receiver.read(references)))
    withdrawal = hasty.receiver.withdrawal()
    assert withdrawal is not None
    assert hasty.receiver.withdrawal() is None, "the peer is told once"
    assert "the peer's ready word did not come within 0.2 s" in withdrawal.reason
    assert "is of no more use: the peer's ready word" in caplog.text
    with pytest.raises(InvalidArgument, match=r"^the tensor reference is not valid$"):
        hasty.receiver.read(references)
    assert hasty.sender.on_registered(withdrawal) is None
    assert where(hasty.pack(2, torch.ones(4))) == ["inline"]


def test_after_a_withdrawal_the_next_transport_takes_over(tmp_path: Path) -> None:
    ends = Ends(tmp_path, LIMIT_S, others=[SharedMemoryTransport()])
    ends.join()
    ends.here.current.wait_word(ends.here.allocate(16), 0, 1)
    arrived(ends.receiver.read(ends.pack(1, torch.ones(4))))
    withdrawal = ends.receiver.withdrawal()
    assert withdrawal is not None
    region = ends.sender.on_registered(withdrawal)
    assert region is not None
    assert region.WhichOneof("kind") == "shared_memory"
    assert ends.sender.on_registered(ends.receiver.register(region)) is None
    references = ends.pack(1, torch.ones(4), torch.arange(4))
    assert where(references) == ["slice", "slice"]
    assert ends.receiver.read(references).tensors[1].tolist() == [0, 1, 2, 3]
    ends.close()


def test_a_reader_that_never_acknowledges_holds_the_writer_up_no_longer_than_the_limit(
    hasty: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    for batch_id in range(2):
        hasty.pack(batch_id, torch.zeros(4))
        hasty.sender.release(batch_id)
    references = hasty.pack(2, torch.ones(4))
    assert where(references) == ["slice"]
    hasty.here.current.mark().join([])
    assert "the peer's acknowledge word did not come" in caplog.text
    assert arrived(hasty.receiver.read(references))[0].tolist() == [1] * 4, "what was written before is good"
    caplog.clear()
    for batch_id in range(3, 5):
        assert where(hasty.pack(batch_id, torch.ones(4))) == ["inline"]
    (line,) = (record.getMessage() for record in caplog.records if record.name.endswith("tensor_sender"))
    assert line.startswith("tensors to router go inline from now on: the peer's acknowledge word did not come")
    assert hasty.here.made[0].closed.wait(30), "the region is of no more use"


def test_a_writer_that_gave_up_its_region_offers_the_next_kind(tmp_path: Path) -> None:
    ends = Ends(tmp_path, LIMIT_S, others=[SharedMemoryTransport()])
    ends.join()
    for batch_id in range(3):
        ends.pack(batch_id, torch.zeros(4))
        ends.sender.release(batch_id)
    ends.here.current.mark().join([])
    assert ends.sender.offer_next() is None, "nothing is given up before it is wanted"
    ends.pack(4, torch.zeros(4))
    region = ends.sender.offer_next()
    assert region is not None
    assert region.WhichOneof("kind") == "shared_memory"
    assert ends.sender.offer_next() is None
    assert ends.sender.on_registered(ends.receiver.register(region)) is None
    references = ends.pack(5, torch.ones(4))
    assert ends.receiver.read(references).tensors[0].tolist() == [1] * 4
    ends.close()
    assert ends.sender.offer_next() is None, "there is no stream"


def test_nobody_waits_for_a_reader_of_what_was_never_sent(ends: Ends) -> None:
    lane = ends.here.current
    kept = ends.pack(1, torch.zeros(4))
    unsent = ends.pack(2, torch.zeros(4), torch.arange(2))
    ends.sender.retract(unsent)
    ends.sender.release(2)
    lane.queued.clear()
    references = ends.pack(3, torch.ones(4))
    assert references[0].slice.offset_bytes == unsent[0].slice.offset_bytes
    assert "wait_word" not in lane.queued
    assert arrived(ends.receiver.read(references))[0].tolist() == [1] * 4
    assert arrived(ends.receiver.read(kept))[0].tolist() == [0] * 4
    ends.sender.release(1)
    ends.pack(4, torch.ones(4))
    assert "wait_word" in lane.queued


def test_memory_is_let_go_by_a_thread_of_its_own(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for the whole device, and for who records: not for an event loop."""
    (opened,) = ends.there.opened
    closed_by: list[threading.Thread] = []
    close = opened.close

    def note() -> None:
        closed_by.append(threading.current_thread())
        close()

    monkeypatch.setattr(opened, "close", note)
    ends.receiver.close()
    assert opened.closed.wait(30)
    assert closed_by[0] is not threading.current_thread()


def test_a_region_for_which_there_is_no_lane_is_let_go(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Lane:
        raise Unavailable("cuStreamCreateWithPriority failed: CUDA_ERROR_OUT_OF_MEMORY")

    region = ends.sender.open()
    assert region is not None
    monkeypatch.setattr(ends.there, "new_lane", refuse)
    answer = ends.receiver.register(region)
    assert answer.reason.startswith("cuStreamCreateWithPriority failed")
    assert ends.there.opened[-1].closed.is_set()


def test_when_too_many_waits_are_watched_tensors_go_inline(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allroads.mesh.lease_watch.LeaseWatch.has_room", lambda watch: False)
    assert where(ends.pack(1, torch.ones(4))) == ["inline"]


def test_memory_is_given_back_by_both_ends_also_with_leases_out(ends: Ends) -> None:
    arrived(ends.receiver.read(ends.pack(1, torch.ones(4))))
    ends.pack(2, torch.ones(4))
    (made,), (opened,) = ends.here.made, ends.there.opened
    ends.close()
    ends.close()
    assert made.closed.wait(30)
    assert opened.closed.wait(30)
    assert ends.there.lanes_out == 0


def test_a_sender_that_closes_first_spoils_nothing_that_is_being_read(ends: Ends) -> None:
    references = ends.pack(1, torch.ones(4))
    received = ends.receiver.read(references)
    ends.sender.close()
    assert arrived(received)[0].tolist() == [1] * 4


def test_a_reader_that_closes_while_it_waits_waits_no_longer(tmp_path: Path) -> None:
    ends = Ends(tmp_path, LONG_S)
    ends.join()
    ends.here.current.wait_word(ends.here.allocate(16), 0, 1)
    received = ends.receiver.read(ends.pack(1, torch.ones(4)))
    ends.receiver.close()
    assert all_nan(arrived(received))
    ends.sender.close()


def test_the_same_memory_can_be_opened_again_when_it_was_let_go(ends: Ends) -> None:
    ends.close()
    assert ends.there.opened[0].closed.wait(30)
    ends.join()
    assert arrived(ends.receiver.read(ends.pack(1, torch.ones(2))))[0].tolist() == [1, 1]


class TestDetection:
    """Each case where the way does not work is found by trying it, and the next one is taken (C36)."""

    @pytest.fixture(autouse=True)
    def _log_level(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "allroads.mesh.tensor_sender")

    def falls_back(self, ends: Ends, caplog: pytest.LogCaptureFixture) -> str:
        """Why CUDA IPC was not taken, once shared memory is."""
        region = ends.sender.open()
        while region is not None:
            region = ends.sender.on_registered(ends.receiver.register(region))
        references = ends.pack(1, torch.ones(2), torch.arange(2))
        assert where(references) == ["slice", "slice"]
        assert ends.receiver.read(references).tensors[0].tolist() == [1, 1]
        (line,) = (record.getMessage() for record in caplog.records if record.name.endswith("tensor_sender"))
        assert line.startswith("tensors to router go through shared memory: ")
        ends.close()
        return line.partition("; not through CUDA IPC: ")[2]

    @pytest.fixture
    def ends(self, tmp_path: Path) -> Ends:
        return Ends(tmp_path, LIMIT_S, others=[SharedMemoryTransport()])

    def test_the_round_trip_is_made(self, ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
        ends.join()
        (line,) = (record.getMessage() for record in caplog.records if record.name.endswith("tensor_sender"))
        assert line.startswith("tensors to router go through CUDA IPC: ")
        ends.close()

    def test_the_exporting_process_itself(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        ends = Ends(tmp_path)
        transports: list[RegionTransport] = [CudaIpcTransport(lambda: ends.here), SharedMemoryTransport()]
        ends.sender = TensorSender("router", slot_bytes=64, transports=transports)
        ends.receiver = TensorReceiver("home", transports)
        assert "the peer is in this process" in self.falls_back(ends, caplog)

    def test_another_gpu_of_the_same_number(self, ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
        ends.there.uuid = "00000000-0000-0000-0000-000000000008"
        assert self.falls_back(ends, caplog) == "the peer's tensors are on another GPU"
        assert ends.there.opened == []

    @pytest.mark.parametrize("at_the_sender", [True, False])
    def test_no_driver(self, ends: Ends, caplog: pytest.LogCaptureFixture, *, at_the_sender: bool) -> None:
        def missing() -> IpcDevice:
            raise Unavailable("cuInit: the CUDA driver is missing or too old")

        transports: list[RegionTransport] = [CudaIpcTransport(missing), SharedMemoryTransport()]
        if at_the_sender:
            ends.sender = TensorSender("router", slot_bytes=64, transports=transports)
        else:
            ends.receiver = TensorReceiver("home", transports)
        assert self.falls_back(ends, caplog) == "cuInit: the CUDA driver is missing or too old"

    def test_memory_that_cannot_be_exported(
        self, ends: Ends, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(size_bytes: int) -> DeviceMemory:
            raise Unavailable("cuIpcGetMemHandle failed: CUDA_ERROR_NOT_SUPPORTED")

        monkeypatch.setattr(ends.here, "allocate", refuse)
        assert self.falls_back(ends, caplog) == "cuIpcGetMemHandle failed: CUDA_ERROR_NOT_SUPPORTED"

    def test_isolated_namespaces(self, ends: Ends, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
        elsewhere = SharedDevice(tmp_path / "elsewhere")
        ends.receiver = TensorReceiver("home", [CudaIpcTransport(lambda: elsewhere), SharedMemoryTransport()])
        assert self.falls_back(ends, caplog) == "cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_VALUE"

    def test_words_that_do_not_pass(self, ends: Ends, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
        wipe_when_opened(ends, PROBE.size + READY, 4)
        assert self.falls_back(ends, caplog) == "the peer's ready word is not there"
        assert "wait_word" not in ends.there.lanes[0].queued, "nothing waits for what may never come"

    def test_contents_that_do_not_pass(self, ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
        wipe_when_opened(ends, 16, 4)
        assert self.falls_back(ends, caplog) == "the CUDA IPC has other contents than the peer says"

    def test_a_peer_that_only_says_so(self, ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
        region = ends.sender.open()
        assert region is not None
        answer = pb.Registered(region_id=region.region_id, transport=pb.TRANSPORT_CUDA_IPC, reason="trust me")
        other = ends.sender.on_registered(answer)
        assert other is not None
        assert other.WhichOneof("kind") == "shared_memory"
        assert ends.sender.on_registered(ends.receiver.register(other)) is None
        assert "not through CUDA IPC: the peer says that it opened the region, and has left no trace" in caplog.text
        ends.close()


def wipe_when_opened(ends: Ends, offset: int, num_bytes: int) -> None:
    """Let the reader's device see zeros somewhere, as one that shares nothing would."""
    open_memory = ends.there.open

    def opened(handle: bytes, size_bytes: int) -> DeviceMemory:
        memory = open_memory(handle, size_bytes)
        memory.view(offset, num_bytes).zero_()
        return memory

    ends.there.open = opened  # type: ignore[assignment, method-assign]


class TestUntrustedFields:
    """What a peer says is checked before anything is opened, and refused in general terms (C37)."""

    @pytest.fixture
    def ends(self, tmp_path: Path) -> Iterator[Ends]:
        ends = Ends(tmp_path)
        yield ends
        ends.close()

    @pytest.mark.parametrize("handle", [b"", b"x", b"x" * 63, b"x" * 65, b"x" * 5000])
    def test_handles(self, ends: Ends, handle: bytes) -> None:
        self.refused(ends, handle=handle)

    @pytest.mark.parametrize("uuid", ["", "0", "cuda:0", "../../etc/passwd", "x" * 5000, "{" + "0" * 32 + "}"])
    def test_uuids(self, ends: Ends, uuid: str) -> None:
        self.refused(ends, uuid=uuid)

    @pytest.mark.parametrize("size", [0, 1, FIRST_SLOT, FIRST_SLOT + SLOT_BYTES, 2**30 + 1, 2**63, 2**64 - 1])
    def test_sizes(self, ends: Ends, size: int) -> None:
        self.refused(ends, size=size)

    def refused(
        self, ends: Ends, *, handle: bytes | None = None, uuid: str | None = None, size: int | None = None
    ) -> None:
        region = ends.sender.open()
        assert region is not None
        region.cuda_ipc.handle = region.cuda_ipc.handle if handle is None else handle
        region.cuda_ipc.device_uuid = region.cuda_ipc.device_uuid if uuid is None else uuid
        region.size_bytes = region.size_bytes if size is None else size
        with pytest.raises(InvalidArgument, match=r"^the region is not valid$"):
            ends.receiver.register(region)
        assert ends.there.opened == []

    def test_memory_that_is_smaller_than_told(self, ends: Ends) -> None:
        region = ends.sender.open()
        assert region is not None
        region.size_bytes += 4096
        with pytest.raises(InvalidArgument, match=r"^the region is not valid$"):
            ends.receiver.register(region)
        assert ends.there.opened == []

    def test_a_region_is_opened_once(self, ends: Ends) -> None:
        transport = CudaIpcTransport(lambda: ends.there)
        region = ends.sender.open()
        assert region is not None
        first, second = (TensorReceiver("home", [transport]) for _ in range(2))
        first.register(region)
        with pytest.raises(InvalidArgument, match=r"^the region is not valid$"):
            second.register(region)
        assert len(ends.there.opened) == 1
        first.close()

    @pytest.mark.parametrize(
        "changes",
        [
            {"generation": 0},
            {"generation": 2**63},
            {"generation": 2**64 - 1},
            {"offset_bytes": 0},
            {"offset_bytes": FIRST_SLOT},
            {"offset_bytes": FIRST_SLOT + HEADER.size + 4},
            {"offset_bytes": FIRST_SLOT + SLOT_BYTES + HEADER.size},
            {"offset_bytes": FIRST_SLOT + 2 * (SLOT_BYTES + HEADER.size) + HEADER.size},
            {"offset_bytes": 2**63 - 1},
            {"offset_bytes": 2**64 - 16},
            {"size_bytes": 0},
            {"size_bytes": 2**64 - 1},
            {"region_id": 2},
            {"dtype": pb.DTYPE_UINT32},
            {"dtype": pb.DTYPE_INT64, "shape": 2},
            {"dtype": 99},
        ],
    )
    def test_slices(self, ends: Ends, changes: dict[str, int]) -> None:
        ends.join()
        (good,) = ends.pack(1, torch.ones(4))
        bad = pb.TensorRef.FromString(good.SerializeToString())
        for name, value in changes.items():
            if name == "shape":
                bad.shape[0] = value
            else:
                setattr(bad if name == "dtype" else bad.slice, name, value)
        with pytest.raises(InvalidArgument, match=r"^the tensor reference is not valid$"):
            ends.receiver.read([bad])
        assert arrived(ends.receiver.read([good]))[0].tolist() == [1] * 4, "the region goes on"


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[RegionPeer]:
    peer = RegionPeer(str(tmp_path), LIMIT_S)
    yield peer
    peer.kill()


def test_a_writer_that_is_killed_leaves_its_reader_nan(tmp_path: Path, peer: RegionPeer) -> None:
    device = SharedDevice(tmp_path)
    receiver = TensorReceiver("home", [CudaIpcTransport(lambda: device, LIMIT_S)])
    answer = receiver.register(pb.Region.FromString(peer.message("offer")))
    assert answer.transport == pb.TRANSPORT_CUDA_IPC
    assert peer.ask("registered", answer.SerializeToString().hex()) is True
    pack = "pack", b"[1.5, -0.0]".hex()
    reference = pb.TensorRef.FromString(peer.message(*pack, "1"))
    assert [str(value) for value in arrived(receiver.read([reference]))[0].tolist()] == ["1.5", "-0.0"]

    peer.ask("stall")
    lost = pb.TensorRef.FromString(peer.message(*pack, "2"))
    assert lost.WhichOneof("location") == "slice"
    peer.kill()
    assert all_nan(arrived(receiver.read([lost])))
    assert receiver.withdrawal() is not None
    receiver.close()
    assert device.opened[0].closed.wait(30)


def test_a_reader_that_is_killed_does_not_stop_its_writer(tmp_path: Path, peer: RegionPeer) -> None:
    device = SharedDevice(tmp_path)
    sender = TensorSender("peer", slot_bytes=4096, num_slots=1, transports=[CudaIpcTransport(lambda: device, LIMIT_S)])
    region = sender.open()
    assert region is not None
    answer = pb.Registered.FromString(peer.message("register", region.SerializeToString().hex()))
    assert sender.on_registered(answer) is None
    (reference,) = sender.pack(1, [torch.tensor([1.0, float("nan")])])
    assert peer.ask("read", reference.SerializeToString().hex()) == ["1.0", "nan"]
    sender.release(1)

    (lost,) = sender.pack(2, [torch.ones(2)])
    assert lost.WhichOneof("location") == "slice"
    peer.kill()
    sender.release(2)
    sender.pack(3, [torch.ones(2)])
    device.current.mark().join([])
    sender.release(3)
    assert where(sender.pack(4, [torch.ones(2)])) == ["inline"]
    sender.close()
    assert device.made[0].closed.wait(30)

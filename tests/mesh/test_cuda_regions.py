"""The lease protocol of GPU memory, run over a shared device that is none, and what may go wrong (C36, C37).

The transport and its state machine are the real ones; `tests/doubles/shared_device.py` stands in for the GPU.
"""

import logging
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.cuda.device_memory import DeviceMemory, HostWords, IpcDevice, Lane
from allroads.errors import InvalidArgument, Unavailable
from allroads.mesh import cuda_regions
from allroads.mesh.cuda_ipc import CudaIpcTransport
from allroads.mesh.region_transport import FIRST_SLOT, HEADER, PROBE, Received, RegionTransport
from allroads.mesh.region_words import RegionWords
from allroads.mesh.regions import DIRECTORY, SharedRegion, boot_id
from allroads.mesh.shared_memory import SharedMemoryTransport
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.wire import common_pb2 as pb
from torch import Tensor

from ..doubles.region_peers import RegionPeer
from ..doubles.shared_device import FileMark, SharedDevice

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


def names() -> set[str]:
    """Of this process's regions in /dev/shm."""
    return {path.name for path in DIRECTORY.glob(f"allroads-{os.getpid()}-*")}


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
        arrived(ends.receiver.read(ends.pack(batch_id, torch.ones(4), torch.zeros(2))))
        ends.sender.release(batch_id)
        assert lane.queued == [*["put_word"] * 2, *["copy_in"] * 2, *["put_word"] * 3, "mark"]


def test_a_lease_lasts_until_the_answer_and_slots_are_used_again(ends: Ends) -> None:
    for batch_id in range(9):
        references = ends.pack(batch_id, torch.full((4,), float(batch_id)))
        assert where(references) == ["slice"]
        assert arrived(ends.receiver.read(references))[0].tolist() == [batch_id] * 4
        ends.sender.release(batch_id)
    assert "wait_word" not in ends.here.current.queued
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


def test_while_a_reader_is_slow_tensors_go_inline_and_the_writer_waits_for_nothing(ends: Ends) -> None:
    (reading,), gate = ends.there.lanes, ends.there.words()
    reading.wait_word(gate, 0, 1)
    received, ways = [], []
    for batch_id in range(4):
        references = ends.pack(batch_id, torch.full((4,), float(batch_id)))
        ways += where(references)
        received.append(ends.receiver.read(references))
        ends.sender.release(batch_id)
    assert ways == ["slice", "slice", "inline", "inline"], "the slots of the first two are not free yet"
    ends.here.current.mark().join([])
    assert "wait_word" not in ends.here.current.queued
    gate.store(0, 1)
    assert [arrived(each)[0].tolist() for each in received] == [[float(i)] * 4 for i in range(4)]
    assert where(ends.pack(4, torch.ones(4))) == ["slice"], "that was no fault"


def test_a_writer_that_stops_before_it_is_ready_makes_nan_and_its_region_is_given_up(
    hasty: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    hasty.here.current.wait_word(hasty.here.words(), 0, 1)
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
    ends.here.current.wait_word(ends.here.words(), 0, 1)
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


def test_a_wait_is_ended_though_every_call_of_cuda_hangs(hasty: Ends) -> None:
    """CUDA may hold its lock while it loads a kernel, until the device is done with all: with that wait, too."""
    hasty.here.current.wait_word(hasty.here.words(), 0, 1)
    received = hasty.receiver.read(hasty.pack(1, torch.ones(4)))
    hasty.there.driver.block()
    other = threading.Thread(target=hasty.there.allocate, args=(16,))
    other.start()
    assert hasty.there.driver.held_up.get(timeout=30) == "allocate"
    assert isinstance(received.mark, FileMark)
    assert received.mark.reached.wait(30)
    hasty.receiver.close()
    hasty.there.driver.unblock()
    other.join()
    assert all_nan(arrived(received))


def test_a_reader_can_be_closed_though_every_call_of_cuda_hangs(tmp_path: Path) -> None:
    ends = Ends(tmp_path, LONG_S)
    ends.join()
    ends.here.current.wait_word(ends.here.words(), 0, 1)
    received = ends.receiver.read(ends.pack(1, torch.ones(4)))
    ends.there.driver.block()
    ends.receiver.close()
    assert isinstance(received.mark, FileMark)
    assert received.mark.reached.wait(30)
    ends.there.driver.unblock()
    assert ends.there.opened[0].closed.wait(30)
    ends.sender.close()


class Clock:
    """What the writer's host goes by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(cuda_regions, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def fill(ends: Ends) -> None:
    """Use both slots, for nobody reads."""
    for batch_id in range(2):
        assert where(ends.pack(batch_id, torch.zeros(4))) == ["slice"]
        ends.sender.release(batch_id)


def test_a_reader_that_never_acknowledges_costs_the_region_after_the_limit(
    ends: Ends, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    fill(ends)
    for batch_id in range(2, 4):
        assert where(ends.pack(batch_id, torch.ones(4))) == ["inline"]
    assert caplog.text == ""
    clock.now += LONG_S
    assert where(ends.pack(4, torch.ones(4))) == ["inline"]
    assert "is of no more use: the peer's acknowledge word did not come within 60 s" in caplog.text
    assert "wait_word" not in ends.here.current.queued
    for batch_id in range(5, 7):
        assert where(ends.pack(batch_id, torch.ones(4))) == ["inline"]
    (line,) = (record.getMessage() for record in caplog.records if record.name.endswith("tensor_sender"))
    assert line.startswith("tensors to router go inline from now on: the peer's acknowledge word did not come")
    assert ends.here.made[0].closed.wait(30), "the region is of no more use"


def test_the_limit_begins_when_a_slot_is_wanted_back(ends: Ends, clock: Clock) -> None:
    first, second = (ends.pack(batch_id, torch.full((4,), float(batch_id))) for batch_id in range(2))
    for batch_id in range(2):
        ends.sender.release(batch_id)
    clock.now += 2 * LONG_S
    assert where(ends.pack(2, torch.ones(4))) == ["inline"]
    assert [arrived(ends.receiver.read(each))[0].tolist() for each in (first, second)] == [[0] * 4, [1] * 4]
    assert where(ends.pack(3, torch.ones(4))) == ["slice"]


def test_a_writer_that_gave_up_its_region_offers_the_next_kind(tmp_path: Path, clock: Clock) -> None:
    ends = Ends(tmp_path, others=[SharedMemoryTransport()])
    ends.join()
    fill(ends)
    for batch_id in range(2, 4):
        ends.pack(batch_id, torch.zeros(4))
    clock.now += LONG_S
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


def test_a_gpu_that_fails_costs_the_region(
    ends: Ends, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise Unavailable("cuStreamWriteValue32 failed: CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(ends.here.current, "copy_in", broken)
    assert where(ends.pack(1, torch.ones(4))) == ["inline"]
    assert "go inline from now on: cuStreamWriteValue32 failed" in caplog.text


def test_a_slot_of_what_was_never_sent_is_free_at_once(ends: Ends) -> None:
    kept = ends.pack(1, torch.zeros(4))
    unsent = ends.pack(2, torch.zeros(4), torch.arange(2))
    ends.sender.retract(unsent)
    ends.sender.release(2)
    references = ends.pack(3, torch.ones(4))
    assert references[0].slice.offset_bytes == unsent[0].slice.offset_bytes
    ends.sender.release(1)
    assert where(ends.pack(4, torch.ones(4))) == ["inline"], "the other one was not read yet"
    assert arrived(ends.receiver.read(references))[0].tolist() == [1] * 4
    assert arrived(ends.receiver.read(kept))[0].tolist() == [0] * 4
    assert where(ends.pack(5, torch.ones(4))) == ["slice"]


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


def test_what_cannot_be_watched_is_not_waited_for(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allroads.mesh.lease_watch.LeaseWatch.has_room", lambda watch: False)
    with pytest.raises(InvalidArgument):
        ends.receiver.read(ends.pack(1, torch.ones(4)))
    withdrawal = ends.receiver.withdrawal()
    assert withdrawal is not None
    assert withdrawal.reason == "no longer: too many leases wait"
    assert ends.there.lanes[0].queued.count("wait_word") == 1, "the greeting's"


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
    ends.here.current.wait_word(ends.here.words(), 0, 1)
    received = ends.receiver.read(ends.pack(1, torch.ones(4)))
    ends.receiver.close()
    assert all_nan(arrived(received))
    ends.sender.close()


def test_the_words_have_no_name_any_more_when_the_peer_has_them(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    region = ends.sender.open()
    assert region is not None
    assert names() == {region.cuda_ipc.words.name}
    assert ends.sender.on_registered(ends.receiver.register(region)) is None
    assert names() == set()
    ends.close()
    ends.sender.open()
    ends.sender.close()
    assert names() == set()


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

    def test_no_common_dev_shm(self, ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
        """The words are looked for first: what cannot be waited for need not be opened."""
        region = ends.sender.open()
        assert region is not None
        (DIRECTORY / region.cuda_ipc.words.name).unlink()
        other = ends.sender.on_registered(ends.receiver.register(region))
        assert other is not None
        assert other.WhichOneof("kind") == "shared_memory"
        assert ends.sender.on_registered(ends.receiver.register(other)) is None
        assert "not through CUDA IPC: the peer's words are out of reach: No such file or directory" in caplog.text
        assert ends.there.opened == []
        ends.close()

    def test_another_host(self, ends: Ends) -> None:
        region = ends.sender.open()
        assert region is not None
        region.cuda_ipc.words.boot_id = "another"
        assert ends.receiver.register(region).reason == "the peer is on another host"
        ends.close()

    @pytest.mark.parametrize("at_the_sender", [True, False])
    def test_a_gpu_that_does_not_reach_the_host(
        self, ends: Ends, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, at_the_sender: bool
    ) -> None:
        def refuse(memory: object) -> HostWords:
            raise Unavailable("cuMemHostRegister failed: CUDA_ERROR_NOT_SUPPORTED")

        monkeypatch.setattr(ends.here if at_the_sender else ends.there, "register", refuse)
        assert self.falls_back(ends, caplog) == "cuMemHostRegister failed: CUDA_ERROR_NOT_SUPPORTED"
        assert names() == set()

    def test_no_room_for_words(
        self, ends: Ends, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create = SharedRegion.create

        def full(size_bytes: int) -> SharedRegion:
            if size_bytes == mmap.PAGESIZE:
                raise OSError(28, "No space left on device")
            return create(size_bytes)

        monkeypatch.setattr(SharedRegion, "create", full)
        assert self.falls_back(ends, caplog).startswith("shared memory has no room for the region's words: [Errno 28]")

    def test_a_greeting_that_does_not_arrive(
        self, ends: Ends, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attach = RegionWords.attach

        def wiped(*arguments: Any) -> RegionWords:
            words = attach(*arguments)
            words.on_device.store(words.ready(cuda_regions.OWN), 0)
            return words

        monkeypatch.setattr(RegionWords, "attach", wiped)
        assert self.falls_back(ends, caplog) == "the peer's ready word is not there"
        assert ends.there.lanes[0].queued == [], "nothing waits for what may never come"

    def test_an_answer_that_does_not_arrive(
        self, ends: Ends, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        register = ends.there.register

        def copied(memory: mmap.mmap) -> HostWords:
            words = register(memory)
            words.load = {0: cuda_regions.GREETING}.get  # type: ignore[assignment, method-assign]
            return words

        monkeypatch.setattr(ends.there, "register", copied)
        assert self.falls_back(ends, caplog) == "what the GPU writes into the region's words does not arrive there"
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

    @pytest.mark.parametrize(
        "name",
        [
            "", ".", "../../etc/passwd", "/dev/shm/other_service", "allroads-1-", "allroads-1-0123456789abcdef/../x",
            "allroads-1-0123456789abcdef\n", "a" * 5000,
        ],
    )  # fmt: skip
    def test_names_of_words(self, ends: Ends, name: str) -> None:
        self.refused(ends, words=pb.SharedMemoryRegion(name=name, boot_id=boot_id()))

    def test_no_words(self, ends: Ends) -> None:
        self.refused(ends, words=pb.SharedMemoryRegion())

    @pytest.mark.parametrize("num_bytes", [64, 2 * mmap.PAGESIZE])
    def test_files_of_words_that_are_too_small_or_large(self, ends: Ends, num_bytes: int) -> None:
        other = SharedRegion.create(num_bytes)
        self.refused(ends, words=pb.SharedMemoryRegion(name=other.name, boot_id=boot_id()))
        other.close()

    def test_a_file_of_words_that_shrinks_before_it_is_mapped(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attach = SharedRegion.attach

        def shrunk(name: str, *arguments: Any, **named: Any) -> SharedRegion:
            region = attach(name, *arguments, **named)
            os.truncate(DIRECTORY / name, 0)
            return region

        monkeypatch.setattr(SharedRegion, "attach", shrunk)
        self.refused(ends)

    def test_slots_that_need_too_many_words(self, ends: Ends) -> None:
        region = ends.sender.open()
        assert region is not None
        mark, _, nonce = PROBE.unpack(region.probe)
        region.probe, region.size_bytes = PROBE.pack(mark, 2 * HEADER.size, nonce), 1 << 30
        with pytest.raises(InvalidArgument, match=r"^the region is not valid$"):
            ends.receiver.register(region)
        with pytest.raises(Unavailable, match="more slots than a region may have words for"):
            CudaIpcTransport(lambda: ends.here).create(region.size_bytes, region.probe)
        assert ends.there.opened == []

    @pytest.mark.parametrize("size", [0, 1, FIRST_SLOT, FIRST_SLOT + SLOT_BYTES, 2**30 + 1, 2**63, 2**64 - 1])
    def test_sizes(self, ends: Ends, size: int) -> None:
        self.refused(ends, size=size)

    def refused(
        self,
        ends: Ends,
        *,
        handle: bytes | None = None,
        uuid: str | None = None,
        size: int | None = None,
        words: pb.SharedMemoryRegion | None = None,
    ) -> None:
        region = ends.sender.open()
        assert region is not None
        region.cuda_ipc.handle = region.cuda_ipc.handle if handle is None else handle
        region.cuda_ipc.device_uuid = region.cuda_ipc.device_uuid if uuid is None else uuid
        region.size_bytes = region.size_bytes if size is None else size
        region.cuda_ipc.words.CopyFrom(region.cuda_ipc.words if words is None else words)
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
    received = receiver.read([lost])
    device.driver.block()
    assert isinstance(received.mark, FileMark)
    assert received.mark.reached.wait(30), "ended though every call of CUDA hangs"
    device.driver.unblock()
    assert all_nan(arrived(received))
    assert receiver.withdrawal() is not None
    receiver.close()
    assert device.opened[0].closed.wait(30)


def test_a_reader_that_is_killed_does_not_stop_its_writer(tmp_path: Path, peer: RegionPeer, clock: Clock) -> None:
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
    assert where(sender.pack(3, [torch.ones(2)])) == ["inline"]
    clock.now += LIMIT_S
    assert where(sender.pack(4, [torch.ones(2)])) == ["inline"]
    device.current.mark().join([])
    assert "wait_word" not in device.current.queued
    assert device.made[0].closed.wait(30), "the region is given up"
    sender.close()

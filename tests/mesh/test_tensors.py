"""Tensors arrive bit for bit over each transport (C39); what a peer says of them is checked (C37)."""

import logging
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
import torch
from allroads.errors import InvalidArgument
from allroads.mesh import shared_memory
from allroads.mesh.process_memory import ProcessMemoryTransport
from allroads.mesh.region_transport import ALIGNMENT, FIRST_SLOT, HEADER, PROBE, RegionTransport
from allroads.mesh.regions import DIRECTORY, SharedRegion
from allroads.mesh.shared_memory import SharedMemoryTransport
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.transports import TRANSPORTS
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire.common_pb2 import Registered
from google.protobuf.message import DecodeError
from torch import Tensor

SLOT_BYTES = 64 * 1024
needs_shared_memory = pytest.mark.skipif(not DIRECTORY.is_dir(), reason="no /dev/shm here")


WAYS: dict[str, Sequence[RegionTransport]] = {
    "inline": (),
    "process memory": (ProcessMemoryTransport(),),
    "shared memory": (SharedMemoryTransport(),),
}
HANDLES = ["process memory", pytest.param("shared memory", marks=needs_shared_memory)]


class Ends:
    """A sender and a receiver, joined by a region or not, whose references really cross the wire."""

    def __init__(self, transports: Sequence[RegionTransport], num_slots: int = 4) -> None:
        self.transports = transports
        self.sender = TensorSender("router", slot_bytes=SLOT_BYTES, num_slots=num_slots, transports=transports)
        self.receiver = TensorReceiver("home", transports)
        self.region = self.sender.open()
        if self.region is not None:
            assert self.sender.on_registered(self.receiver.register(self.region)) is None

    def carry(self, batch_id: int, *tensors: Tensor) -> tuple[list[pb.TensorRef], list[Tensor]]:
        references = self.sender.pack(batch_id, tensors)
        crossed = [pb.TensorRef.FromString(reference.SerializeToString()) for reference in references]
        return crossed, self.receiver.read(crossed).tensors

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


@pytest.fixture(params=["inline", *HANDLES])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    ends = Ends(WAYS[request.param])
    yield ends
    ends.close()


@pytest.fixture(params=HANDLES)
def joined(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Ends that pass handles."""
    ends = Ends(WAYS[request.param])
    yield ends
    ends.close()


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


FLOATS = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, 1e-40, 6e-8, -3.25, 65504.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_are_bit_identical(ends: Ends, dtype: torch.dtype) -> None:
    sent = torch.tensor(FLOATS).to(dtype)
    # A NaN with a payload, and the smallest subnormal.
    sent.view(torch.uint8)[: dtype.itemsize] = 1
    (_,), (got,) = ends.carry(1, sent)
    assert (got.dtype, got.shape, bits(got)) == (dtype, sent.shape, bits(sent))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint32, torch.uint8, torch.bool])
def test_integers_are_bit_identical(ends: Ends, dtype: torch.dtype) -> None:
    sent = torch.tensor([0, 1, 1, 0]) if dtype is torch.bool else torch.tensor([0, 1, 255, 7])
    (_,), (got,) = ends.carry(1, sent.to(dtype))
    assert (got.dtype, bits(got)) == (dtype, bits(sent.to(dtype)))


def test_the_extremes_of_int64(ends: Ends) -> None:
    sent = torch.tensor([-(2**63), 2**63 - 1])
    (_,), (got,) = ends.carry(1, sent)
    assert torch.equal(got, sent)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1, 5120), (1,)])
def test_shapes(ends: Ends, shape: tuple[int, ...]) -> None:
    sent = torch.randn(shape).bfloat16()
    (_,), (got,) = ends.carry(1, sent)
    assert (got.shape, bits(got)) == (sent.shape, bits(sent))


def test_views_are_copied_right(ends: Ends) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    views = (base.T, base[::2, 1:4], base[:1].expand(5, 6), base[3:], torch.arange(5).flip(0))
    _, got = ends.carry(1, *views)
    for view, tensor in zip(views, got, strict=True):
        assert torch.equal(view, tensor)
        assert tensor.is_contiguous()


def test_what_was_read_does_not_change_afterwards(ends: Ends) -> None:
    sent = torch.zeros(4)
    (_,), (got,) = ends.carry(1, sent)
    sent.fill_(1)
    ends.sender.release(1)
    ends.carry(2, torch.full((4,), 2.0))
    got += 0
    assert got.tolist() == [0, 0, 0, 0]


def test_a_dtype_that_does_not_travel_is_named(ends: Ends) -> None:
    with pytest.raises(InvalidArgument, match=r"torch\.float64"):
        ends.sender.pack(1, [torch.zeros(2, dtype=torch.float64)])


def where(references: list[pb.TensorRef]) -> set[str | None]:
    return {reference.WhichOneof("location") for reference in references}


def test_a_refusal_holds_no_lease(joined: Ends) -> None:
    for _ in range(4):
        with pytest.raises(InvalidArgument):
            joined.sender.pack(1, [torch.zeros(2, dtype=torch.float64)])
    assert where(joined.carry(1, torch.zeros(2))[0]) == {"slice"}


def test_a_lease_lasts_until_the_answer_and_the_rest_goes_inline(joined: Ends) -> None:
    features = torch.randn(8, 64), torch.arange(8)
    for batch_id in range(4):
        assert where(joined.carry(batch_id, *features)[0]) == {"slice"}
    references, got = joined.carry(4, *features)
    assert where(references) == {"inline"}
    assert torch.equal(got[0], features[0])
    joined.sender.release(2)
    joined.sender.release(2)
    assert where(joined.carry(5, *features)[0]) == {"slice"}
    assert where(joined.carry(6, *features)[0]) == {"inline"}
    assert where(joined.carry(7, torch.zeros(SLOT_BYTES))[0]) == {"inline"}


def test_a_late_reader_of_an_old_lease_is_told(joined: Ends) -> None:
    (old,), _ = joined.carry(1, torch.zeros(8))
    joined.sender.release(1)
    for batch_id in range(2, 6):
        joined.carry(batch_id, torch.ones(8))
    with pytest.raises(InvalidArgument, match="not valid"):
        joined.receiver.read([old])


def test_a_batch_is_one_lease(joined: Ends) -> None:
    (first,), _ = joined.carry(1, torch.zeros(8))
    (second,), _ = joined.carry(2, torch.ones(8))
    with pytest.raises(InvalidArgument, match="not valid"):
        joined.receiver.read([first, second])
    second.slice.generation = first.slice.generation
    with pytest.raises(InvalidArgument, match="not valid"):
        joined.receiver.read([first, second])


def test_tensors_lie_aligned(joined: Ends) -> None:
    sent = [torch.arange(n, dtype=torch.uint8) for n in (1, 17, 16, 3)]
    references, got = joined.carry(1, *sent)
    assert all(reference.slice.offset_bytes % ALIGNMENT == 0 for reference in references)
    assert all(torch.equal(*pair) for pair in zip(sent, got, strict=True))


def test_empty_tensors_go_inline_beside_the_others(joined: Ends) -> None:
    references, got = joined.carry(1, torch.empty(0, 3), torch.ones(2))
    assert [reference.WhichOneof("location") for reference in references] == ["inline", "slice"]
    assert [tensor.shape for tensor in got] == [(0, 3), (2,)]


def test_leases_are_free_again_on_a_new_stream(joined: Ends) -> None:
    for batch_id in range(4):
        joined.carry(batch_id, torch.zeros(8))
    region = joined.sender.open()
    assert region is not None
    assert joined.region is not None
    assert region.region_id != joined.region.region_id
    assert where(joined.sender.pack(9, [torch.zeros(8)])) == {"inline"}, "not registered yet"
    receiver = TensorReceiver("home", joined.transports)
    joined.sender.on_registered(receiver.register(region))
    (reference,) = joined.sender.pack(9, [torch.ones(8)])
    assert where([reference]) == {"slice"}
    assert receiver.read([reference]).tensors[0].tolist() == [1] * 8
    receiver.close()


def test_the_end_of_a_stream_ends_its_leases(joined: Ends) -> None:
    (reference,), _ = joined.carry(1, torch.zeros(8))
    joined.receiver.close()
    joined.receiver.close()
    with pytest.raises(InvalidArgument, match="not valid"):
        joined.receiver.read([reference])
    joined.sender.close()
    assert where(joined.sender.pack(2, [torch.zeros(8)])) == {"inline"}


def test_a_region_that_is_in_use_can_be_found_no_more(joined: Ends) -> None:
    assert joined.region is not None
    answer = TensorReceiver("another", joined.transports).register(joined.region)
    assert answer.transport == pb.TRANSPORT_INLINE


@needs_shared_memory
def test_no_name_is_left_once_both_ends_have_the_region() -> None:
    ends = Ends(WAYS["shared memory"])
    assert ends.region is not None
    assert not (DIRECTORY / ends.region.shared_memory.name).exists()
    ends.close()


def reference(**changes: int | list[int]) -> pb.TensorRef:
    """A right reference to four floats in the first slot, with changes."""
    place = {"region_id": 1, "offset_bytes": FIRST_SLOT + HEADER.size, "size_bytes": 16, "generation": 1}
    ref = pb.TensorRef(dtype=pb.DTYPE_FLOAT32, shape=[4])
    for name, value in changes.items():
        if name in place:
            assert isinstance(value, int)
            place[name] = value
    ref.slice.CopyFrom(pb.RegionSlice(**place))
    if isinstance(shape := changes.get("shape"), list):
        del ref.shape[:]
        ref.shape.extend(shape)
    if isinstance(dtype := changes.get("dtype"), int):
        ref.dtype = dtype  # type: ignore[assignment]
    return ref


@pytest.mark.parametrize(
    "changes",
    [
        {"offset_bytes": 2**63 - 1},
        {"offset_bytes": 2**64 - 8},
        {"offset_bytes": 2**64 - 16},
        {"offset_bytes": 0},
        {"offset_bytes": PROBE.size},
        {"offset_bytes": FIRST_SLOT},
        {"offset_bytes": FIRST_SLOT + HEADER.size + 4, "size_bytes": 4, "shape": [1]},
        {"offset_bytes": FIRST_SLOT + SLOT_BYTES + HEADER.size},
        {"offset_bytes": FIRST_SLOT + 4 * (SLOT_BYTES + HEADER.size) + HEADER.size},
        {"size_bytes": 0},
        {"size_bytes": 2**64 - 1},
        {"size_bytes": 15},
        {"size_bytes": 0, "shape": [0]},
        {"shape": [5]},
        {"shape": [2**62, 4]},
        {"shape": [2**32, 2**32]},
        {"shape": [0, 2**63]},
        {"shape": [1] * 9},
        {"dtype": 0},
        {"dtype": 99},
        {"region_id": 0},
        {"region_id": 2},
        {"generation": 0},
        {"generation": 2},
        {"generation": 2**64 - 1},
    ],
)
def test_slices_that_are_wrong_are_refused_in_general_terms(joined: Ends, changes: dict[str, int | list[int]]) -> None:
    joined.carry(1, torch.arange(4.0))
    assert joined.receiver.read([reference()]).tensors[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(InvalidArgument, match=r"^the tensor reference is not valid$"):
        joined.receiver.read([reference(**changes)])


@pytest.mark.parametrize(
    "ref",
    [
        pb.TensorRef(),
        pb.TensorRef(dtype=pb.DTYPE_FLOAT32, shape=[1]),
        pb.TensorRef(dtype=pb.DTYPE_FLOAT32, shape=[1], inline=b"123"),
        pb.TensorRef(dtype=pb.DTYPE_FLOAT32, shape=[2**61, 8], inline=b""),
        pb.TensorRef(dtype=pb.DTYPE_FLOAT32, shape=[0, 2**63], inline=b""),
        pb.TensorRef(shape=[4], inline=b"1234"),
        reference(),
    ],
)
def test_without_a_region_only_right_inline_tensors_are_read(ref: pb.TensorRef) -> None:
    with pytest.raises(InvalidArgument):
        TensorReceiver("home").read([ref])


def test_negative_sizes_do_not_even_parse() -> None:
    # Field 2 of TensorRef as a varint of -1 is 2^64 - 1 on the wire; a truncated one is no message at all.
    negative = pb.TensorRef.FromString(b"\x08\x01\x10" + b"\xff" * 9 + b"\x01\x1a\x00")
    with pytest.raises(InvalidArgument):
        TensorReceiver("home").read([negative])
    with pytest.raises(DecodeError):
        pb.TensorRef.FromString(b"\x10\xff")


def test_bytes_that_are_no_bool_become_true() -> None:
    ref = pb.TensorRef(dtype=pb.DTYPE_BOOL, shape=[3], inline=b"\x00\x02\x01")
    assert TensorReceiver("home").read([ref]).tensors[0].tolist() == [False, True, True]


def offer(transport: RegionTransport) -> Iterator[pb.Region]:
    sender = TensorSender("router", slot_bytes=64, transports=[transport])
    region = sender.open()
    assert region is not None
    yield region
    sender.close()


def changed(region: pb.Region, **changes: object) -> pb.Region:
    other = pb.Region()
    other.CopyFrom(region)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


WRONG_PROBES = [b"", b"x" * PROBE.size]
WRONG_PROBES += [struct.pack("<8sQ48s", b"allroads", slot_bytes, b"") for slot_bytes in (0, 8, 16, 72, 2**64 - 1)]


class TestRegistration:
    @pytest.fixture(params=HANDLES)
    def region(self, request: pytest.FixtureRequest) -> Iterator[pb.Region]:
        (self.transport,) = WAYS[request.param]
        yield from offer(self.transport)

    def receiver(self) -> TensorReceiver:
        return TensorReceiver("home", [self.transport])

    def test_other_contents_are_noticed(self, region: pb.Region) -> None:
        region.probe = region.probe[:-1] + bytes([region.probe[-1] ^ 1])
        answer = self.receiver().register(region)
        assert answer.transport == pb.TRANSPORT_INLINE
        assert "other contents" in answer.reason

    def test_what_no_peer_of_ours_would_ask_is_refused(self, region: pb.Region) -> None:
        sizes = (0, 10, region.size_bytes + 1, 2**63)
        wrong = [pb.Region(), *(changed(region, size_bytes=size) for size in sizes)]
        for bad in (*wrong, *(changed(region, probe=probe) for probe in WRONG_PROBES)):
            with pytest.raises(InvalidArgument, match="not valid"):
                self.receiver().register(bad)

    def test_a_stream_uses_one_region_at_a_time(self, region: pb.Region) -> None:
        receiver = self.receiver()
        receiver.register(region)
        with pytest.raises(InvalidArgument, match="one region"):
            receiver.register(region)
        receiver.close()

    def test_a_later_region_takes_the_place_of_the_first(self, region: pb.Region) -> None:
        receiver = self.receiver()
        receiver.register(region)
        other = offer(self.transport)
        answer = receiver.register(changed(next(other), region_id=2))
        assert (answer.region_id, answer.transport) == (2, self.transport.number)
        receiver.close()
        next(other, None)


def test_cuda_is_refused_with_a_clear_message() -> None:
    answer = TensorReceiver("home").register(pb.Region(region_id=3, cuda_ipc=pb.CudaIpcRegion(handle=b"0" * 64)))
    assert (answer.region_id, answer.transport) == (3, pb.TRANSPORT_INLINE)
    assert "cuda_ipc are not supported here" in answer.reason


@needs_shared_memory
class TestSharedMemory:
    @pytest.fixture
    def region(self) -> Iterator[pb.Region]:
        yield from offer(SharedMemoryTransport())

    def test_another_host_is_noticed(self, region: pb.Region) -> None:
        region.shared_memory.boot_id = "another"
        answer = TensorReceiver("home").register(region)
        assert (answer.transport, answer.reason) == (pb.TRANSPORT_INLINE, "the peer is on another host")

    def test_another_shared_memory_directory_is_noticed(
        self, region: pb.Region, monkeypatch: pytest.MonkeyPatch, tmp_path: object
    ) -> None:
        monkeypatch.setattr("allroads.mesh.regions.DIRECTORY", tmp_path)
        answer = TensorReceiver("home").register(region)
        assert answer.transport == pb.TRANSPORT_INLINE
        assert "out of reach" in answer.reason

    def test_names_are_checked(self, region: pb.Region) -> None:
        region.shared_memory.name = "../../etc/passwd"
        with pytest.raises(InvalidArgument, match="not valid"):
            TensorReceiver("home").register(region)


class TestProcessMemory:
    @pytest.fixture
    def region(self) -> Iterator[pb.Region]:
        self.transport = ProcessMemoryTransport()
        yield from offer(self.transport)

    def refused(self, region: pb.Region, transport: RegionTransport) -> None:
        answer = TensorReceiver("home", [transport]).register(region)
        assert (answer.transport, answer.reason) == (pb.TRANSPORT_INLINE, "the peer is another process")

    def test_nothing_lies_outside_of_the_process(self, region: pb.Region) -> None:
        assert not [name for name in os.listdir(DIRECTORY) if name.startswith(f"allroads-{os.getpid()}-")]

    def test_a_key_opens_nothing_in_another_process(self, region: pb.Region) -> None:
        self.refused(region, ProcessMemoryTransport())

    def test_a_forked_process_does_not_take_its_copy_for_the_region(
        self, region: pb.Region, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "getpid", lambda: region.local.pid + 1)
        self.refused(region, self.transport)

    @pytest.mark.parametrize("token", [b"", b"\0" * 32, b"x" * 5000])
    def test_a_wrong_key_is_refused(self, region: pb.Region, token: bytes) -> None:
        region.local.token = token
        self.refused(region, self.transport)


RECEIVE = """
import sys
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.wire.common_pb2 import Region, TensorRef

receiver = TensorReceiver("home")
for line in sys.stdin:
    kind, message = line.split()
    if kind == "register":
        print(receiver.register(Region.FromString(bytes.fromhex(message))).SerializeToString().hex(), flush=True)
    else:
        print(receiver.read([TensorRef.FromString(bytes.fromhex(message))]).tensors[0].tolist(), flush=True)
"""


class TestChoice:
    """The transports of a host are tried in order, and one line says which was chosen and why no better one was."""

    @pytest.fixture(autouse=True)
    def _log_level(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "allroads.mesh.tensor_sender")

    def test_in_one_process_nothing_is_copied_through_files(self, caplog: pytest.LogCaptureFixture) -> None:
        ends = Ends(TRANSPORTS)
        (reference,), (got,) = ends.carry(1, torch.arange(4))
        assert (where([reference]), got.tolist()) == ({"slice"}, [0, 1, 2, 3])
        assert [record.getMessage() for record in caplog.records if record.name.endswith("sender")] == [
            f"tensors to router go through process memory: {ends.region.size_bytes if ends.region else 0} bytes were "
            "opened and the probe was read"
        ]
        ends.close()

    @needs_shared_memory
    def test_another_process_gets_shared_memory(self, caplog: pytest.LogCaptureFixture) -> None:
        sender = TensorSender("router", slot_bytes=64)
        with subprocess.Popen([sys.executable, "-c", RECEIVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:

            def ask(kind: str, message: pb.Region | pb.TensorRef) -> str:
                assert peer.stdin is not None
                assert peer.stdout is not None
                peer.stdin.write(f"{kind} {message.SerializeToString().hex()}\n".encode())
                peer.stdin.flush()
                return peer.stdout.readline().decode().strip()

            region, kinds = sender.open(), []
            while region is not None:
                kinds.append(region.WhichOneof("kind"))
                region = sender.on_registered(Registered.FromString(bytes.fromhex(ask("register", region))))
            (reference,) = sender.pack(1, [torch.arange(4)])
            assert ask("read", reference) == "[0, 1, 2, 3]"
            peer.communicate()
        sender.close()
        assert (kinds, where([reference])) == (["local", "shared_memory"], {"slice"})
        (line,) = (record.getMessage() for record in caplog.records)
        assert line.startswith("tensors to router go through shared memory: ")
        assert line.endswith("; not through process memory: the peer is another process")

    @needs_shared_memory
    def test_a_peer_that_can_use_none_makes_the_sender_go_inline(self, caplog: pytest.LogCaptureFixture) -> None:
        sender = TensorSender("router", slot_bytes=64)
        receiver = TensorReceiver("home", [])
        region, names = sender.open(), []
        while region is not None:
            names.append(region.shared_memory.name)
            region = sender.on_registered(receiver.register(region))
        assert names[0] == ""
        assert not (DIRECTORY / names[1]).exists()
        assert where(sender.pack(1, [torch.zeros(2)])) == {"inline"}
        (line,) = (record.getMessage() for record in caplog.records)
        assert line.startswith("tensors to router go inline: not through process memory: regions of kind local are not")
        assert "; not through shared memory: regions of kind shared_memory are not" in line

    def test_an_answer_that_comes_late_changes_nothing(self) -> None:
        sender = TensorSender("router", slot_bytes=64)
        receiver = TensorReceiver("home")
        old = sender.open()
        assert old is not None
        answer = receiver.register(old)
        new = sender.open()
        assert sender.on_registered(answer) is None
        assert where(sender.pack(1, [torch.zeros(2)])) == {"inline"}
        sender.close()
        assert new is not None
        assert sender.on_registered(Registered(region_id=new.region_id, transport=pb.TRANSPORT_INLINE)) is None


def only_shared_memory(slot_bytes: int) -> TensorSender:
    return TensorSender("router", slot_bytes=slot_bytes, transports=[SharedMemoryTransport()])


def test_without_shared_memory_all_goes_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(size: int) -> SharedRegion:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(SharedRegion, "create", missing)
    sender = only_shared_memory(64)
    assert sender.open() is None
    assert where(sender.pack(1, [torch.zeros(2)])) == {"inline"}


def test_without_a_boot_id_all_goes_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "boot_id", lambda: "")
    assert only_shared_memory(64).open() is None


def test_more_than_a_region_may_have_goes_inline() -> None:
    assert only_shared_memory(2**30).open() is None

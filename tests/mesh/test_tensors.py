"""Tensors arrive bit for bit over each transport (C39); what a peer says of them is checked (C37)."""

import struct
from collections.abc import Iterator

import pytest
import torch
from allroads.errors import InvalidArgument
from allroads.mesh import tensor_receiver, tensor_sender
from allroads.mesh.regions import DIRECTORY, SharedRegion
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import GENERATION, PROBE, TensorSender
from allroads.mesh.wire import common_pb2 as pb
from google.protobuf.message import DecodeError
from torch import Tensor

SLOT_BYTES = 64 * 1024
needs_shared_memory = pytest.mark.skipif(not DIRECTORY.is_dir(), reason="no /dev/shm here")


class Ends:
    """A sender and a receiver, joined by a region or not, whose references really cross the wire."""

    def __init__(self, *, shared: bool, num_slots: int = 4) -> None:
        self.sender = TensorSender("router", slot_bytes=SLOT_BYTES, num_slots=num_slots)
        self.receiver = TensorReceiver("home")
        self.region: pb.Region | None = None
        if shared:
            self.region = self.sender.open()
            assert self.region is not None
            self.sender.on_registered(self.receiver.register(self.region))

    def carry(self, batch_id: int, *tensors: Tensor) -> tuple[list[pb.TensorRef], list[Tensor]]:
        references = self.sender.pack(batch_id, tensors)
        crossed = [pb.TensorRef.FromString(reference.SerializeToString()) for reference in references]
        return crossed, [self.receiver.read(reference) for reference in crossed]

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


@pytest.fixture(params=["inline", pytest.param("shared_memory", marks=needs_shared_memory)])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    ends = Ends(shared=request.param == "shared_memory")
    yield ends
    ends.close()


@pytest.fixture
def shared() -> Iterator[Ends]:
    if not DIRECTORY.is_dir():
        pytest.skip("no /dev/shm here")
    ends = Ends(shared=True)
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


def test_a_refusal_holds_no_lease(shared: Ends) -> None:
    for _ in range(4):
        with pytest.raises(InvalidArgument):
            shared.sender.pack(1, [torch.zeros(2, dtype=torch.float64)])
    assert where(shared.carry(1, torch.zeros(2))[0]) == {"slice"}


def test_a_lease_lasts_until_the_answer_and_the_rest_goes_inline(shared: Ends) -> None:
    features = torch.randn(8, 64), torch.arange(8)
    for batch_id in range(4):
        assert where(shared.carry(batch_id, *features)[0]) == {"slice"}
    references, got = shared.carry(4, *features)
    assert where(references) == {"inline"}
    assert torch.equal(got[0], features[0])
    shared.sender.release(2)
    shared.sender.release(2)
    assert where(shared.carry(5, *features)[0]) == {"slice"}
    assert where(shared.carry(6, *features)[0]) == {"inline"}
    assert where(shared.carry(7, torch.zeros(SLOT_BYTES))[0]) == {"inline"}


def test_a_late_reader_of_an_old_lease_is_told(shared: Ends) -> None:
    (old,), _ = shared.carry(1, torch.zeros(8))
    shared.sender.release(1)
    for batch_id in range(2, 6):
        shared.carry(batch_id, torch.ones(8))
    with pytest.raises(InvalidArgument, match="not valid"):
        shared.receiver.read(old)


def test_leases_are_free_again_on_a_new_stream(shared: Ends) -> None:
    for batch_id in range(4):
        shared.carry(batch_id, torch.zeros(8))
    region = shared.sender.open()
    assert region is not None
    assert region.region_id != shared.region.region_id if shared.region else False
    assert where(shared.sender.pack(9, [torch.zeros(8)])) == {"inline"}, "not registered yet"
    receiver = TensorReceiver("home")
    shared.sender.on_registered(receiver.register(region))
    (reference,) = shared.sender.pack(9, [torch.ones(8)])
    assert where([reference]) == {"slice"}
    assert receiver.read(reference).tolist() == [1] * 8
    receiver.close()


def test_nothing_is_left_once_both_ends_have_the_region(shared: Ends) -> None:
    assert shared.region is not None
    assert not (DIRECTORY / shared.region.shared_memory.name).exists()


def reference(**changes: int | list[int]) -> pb.TensorRef:
    """A right reference to four floats in the first slot, with changes."""
    place = {"region_id": 1, "offset_bytes": PROBE.size + GENERATION.size, "size_bytes": 16, "generation": 1}
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
        {"offset_bytes": PROBE.size + SLOT_BYTES},
        {"offset_bytes": PROBE.size + 4 * (SLOT_BYTES + GENERATION.size) + GENERATION.size},
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
def test_slices_that_are_wrong_are_refused_in_general_terms(shared: Ends, changes: dict[str, int | list[int]]) -> None:
    shared.carry(1, torch.arange(4.0))
    assert shared.receiver.read(reference()).tolist() == [0, 1, 2, 3]
    with pytest.raises(InvalidArgument, match=r"^the tensor reference is not valid$"):
        shared.receiver.read(reference(**changes))


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
        TensorReceiver("home").read(ref)


def test_negative_sizes_do_not_even_parse() -> None:
    # Field 2 of TensorRef as a varint of -1 is 2^64 - 1 on the wire; a truncated one is no message at all.
    negative = pb.TensorRef.FromString(b"\x08\x01\x10" + b"\xff" * 9 + b"\x01\x1a\x00")
    with pytest.raises(InvalidArgument):
        TensorReceiver("home").read(negative)
    with pytest.raises(DecodeError):
        pb.TensorRef.FromString(b"\x10\xff")


def test_bytes_that_are_no_bool_become_true() -> None:
    ref = pb.TensorRef(dtype=pb.DTYPE_BOOL, shape=[3], inline=b"\x00\x02\x01")
    assert TensorReceiver("home").read(ref).tolist() == [False, True, True]


class TestRegistration:
    @pytest.fixture
    def region(self) -> Iterator[pb.Region]:
        if not DIRECTORY.is_dir():
            pytest.skip("no /dev/shm here")
        sender = TensorSender("router", slot_bytes=64)
        region = sender.open()
        assert region is not None
        yield region
        sender.close()

    def test_cuda_is_refused_with_a_clear_message(self) -> None:
        answer = TensorReceiver("home").register(pb.Region(region_id=3, cuda_ipc=pb.CudaIpcRegion(handle=b"0" * 64)))
        assert (answer.region_id, answer.transport) == (3, pb.TRANSPORT_INLINE)
        assert "CUDA IPC is not supported here yet" in answer.reason

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

    def test_other_contents_are_noticed(self, region: pb.Region) -> None:
        region.probe = region.probe[:-1] + bytes([region.probe[-1] ^ 1])
        answer = TensorReceiver("home").register(region)
        assert answer.transport == pb.TRANSPORT_INLINE
        assert "other contents" in answer.reason

    def test_what_no_peer_of_ours_would_ask_is_refused(self, region: pb.Region) -> None:
        def changed(**changes: object) -> pb.Region:
            other = pb.Region()
            other.CopyFrom(region)
            for name, value in changes.items():
                setattr(other, name, value)
            return other

        named = changed()
        named.shared_memory.name = "../../etc/passwd"
        slots = [struct.pack("<8sQ48s", b"allroads", count, b"") for count in (0, 8, 2**64 - 1)]
        wrong = [named, pb.Region(), changed(size_bytes=2**63), changed(size_bytes=10), changed(probe=b"")]
        for bad in (*wrong, *(changed(probe=probe) for probe in slots)):
            with pytest.raises(InvalidArgument, match="not valid"):
                TensorReceiver("home").register(bad)

    def test_a_stream_registers_once(self, region: pb.Region) -> None:
        receiver = TensorReceiver("home")
        receiver.register(region)
        with pytest.raises(InvalidArgument, match="one region"):
            receiver.register(region)
        receiver.close()


def test_without_shared_memory_all_goes_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(size: int) -> SharedRegion:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(SharedRegion, "create", missing)
    sender = TensorSender("router", slot_bytes=64)
    assert sender.open() is None
    assert where(sender.pack(1, [torch.zeros(2)])) == {"inline"}


def test_without_a_boot_id_all_goes_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_sender, "boot_id", lambda: "")
    assert TensorSender("router", slot_bytes=64).open() is None


def test_more_than_a_region_may_have_goes_inline() -> None:
    assert TensorSender("router", slot_bytes=2**30).open() is None


@needs_shared_memory
def test_a_peer_that_cannot_reach_the_region_makes_the_sender_go_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = TensorSender("router", slot_bytes=64)
    region = sender.open()
    assert region is not None
    monkeypatch.setattr(tensor_receiver, "boot_id", lambda: "another host")
    sender.on_registered(TensorReceiver("home").register(region))
    assert not (DIRECTORY / region.shared_memory.name).exists()
    assert where(sender.pack(1, [torch.zeros(2)])) == {"inline"}

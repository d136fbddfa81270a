"""KV pools on a GPU: the lender's memory, its handle, and copies that are done when the device says so."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest
import torch
from allroads.engine.kv_blocks import KvBlocks
from allroads.errors import AllroadsError, InvalidArgument, StartupError, Unavailable
from allroads.llm import kv_cuda
from allroads.llm.kv_cuda import CudaKvMemory, CudaPeerPool
from allroads.llm.kv_memory import own_kv_memory
from allroads.llm.kv_shared_memory import PAGE_BYTES, SharedKvMemory
from allroads.mesh.region_transport import PROBE
from allroads.mesh.wire import common_pb2 as pb

from ..doubles.cpu_kv_device import CpuKvDevice

LAYERS, THERE, HERE, INNER = 3, 9, 7, (2, 4, 2, 8)
"""As flashinfer's: [layers, blocks, 2, block size, KV heads, head width]."""
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: memory is shared through its driver")


def _shape(num_blocks: int) -> tuple[int, ...]:
    return (LAYERS, num_blocks, *INNER)


def _lend(memory: CudaKvMemory, device: str) -> tuple[torch.Tensor, pb.Region]:
    """A pool with something in it, and what is told of it."""
    kv = memory.allocate(_shape(THERE), torch.bfloat16, torch.device(device))
    assert not kv.any()
    kv.copy_(torch.randn(kv.shape, generator=torch.Generator().manual_seed(1)))
    memory.settle()
    return kv, memory.describe()


@pytest.fixture
def device() -> CpuKvDevice:
    return CpuKvDevice()


@pytest.fixture
def own() -> KvBlocks:
    return KvBlocks("flashinfer-nhd", torch.zeros(_shape(HERE), dtype=torch.bfloat16), 1)


def test_blocks_are_copied_to_where_they_are_wanted(
    device: CpuKvDevice, own: KvBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cuda, "_PIECE_BYTES", 2 * own.block_bytes)
    theirs, told = _lend(CudaKvMemory(lambda _: device), "cuda")
    pool = CudaPeerPool(told, own, THERE, find=lambda _: device)
    assert pool.is_settled()
    device.is_done = False
    pool.copy([8, 0, 5], [1, 6, 2])
    assert not pool.is_settled()
    device.is_done = True
    assert pool.is_settled()
    assert torch.equal(own.memory[:, [1, 6, 2]], theirs[:, [8, 0, 5]])
    assert not own.memory[:, [0, 3, 4, 5]].any()
    pool.close()
    assert device.opened[0].num_closed == 1


def test_the_probe_lies_before_the_blocks(device: CpuKvDevice) -> None:
    theirs, told = _lend(CudaKvMemory(lambda _: device), "cuda:0")
    assert told.size_bytes == PAGE_BYTES + theirs.nbytes
    assert len(told.probe) == PROBE.size
    assert told.cuda_ipc.device_uuid == "GPU-1"


def test_memory_that_is_not_there_is_told_at_start() -> None:
    with pytest.raises(StartupError, match="CUDA_ERROR_OUT_OF_MEMORY; lower num_kv_tokens") as refused:
        _lend(CudaKvMemory(lambda _: CpuKvDevice(room_bytes=100)), "cuda")
    assert refused.value.field == "lends_kv"


def _another_gpu(told: pb.Region) -> None:
    told.cuda_ipc.device_uuid = "GPU-2"


def _short_handle(told: pb.Region) -> None:
    told.cuda_ipc.handle = told.cuda_ipc.handle[1:]


def _unknown_handle(told: pb.Region) -> None:
    told.cuda_ipc.handle = bytes(64)


def _wrong_probe(told: pb.Region) -> None:
    told.probe = bytes(PROBE.size)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (_another_gpu, Unavailable),
        (_short_handle, InvalidArgument),
        (_unknown_handle, Unavailable),
        (_wrong_probe, InvalidArgument),
    ],
)
def test_what_is_told_of_a_pool_is_not_trusted(
    device: CpuKvDevice, own: KvBlocks, change: Callable[[pb.Region], None], refusal: type[AllroadsError]
) -> None:
    _, told = _lend(CudaKvMemory(lambda _: device), "cuda")
    change(told)
    with pytest.raises(refusal):
        CudaPeerPool(told, own, THERE, find=lambda _: device)
    assert all(memory.num_closed for memory in device.opened)


def test_the_kind_of_memory_is_the_devices() -> None:
    assert isinstance(own_kv_memory("cuda:1"), CudaKvMemory)
    assert isinstance(own_kv_memory("cpu"), SharedKvMemory)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
def test_without_a_gpu_lending_says_so() -> None:
    with pytest.raises(StartupError, match="set lends_kv to false"):
        CudaKvMemory().allocate((1,), torch.float32, torch.device("cuda"))


def _lender(line: Connection) -> None:
    """Another process, which lends until it is told to end."""
    kv, told = _lend(CudaKvMemory(), "cuda:0")
    line.send((told.SerializeToString(), kv.cpu().view(torch.int16).numpy().tobytes()))
    line.recv()


@pytest.mark.gpu
@NEEDS_GPU
def test_blocks_of_another_process_on_a_gpu() -> None:
    context = multiprocessing.get_context("spawn")
    line, theirs = context.Pipe()
    lender = context.Process(target=_lender, args=(theirs,))
    lender.start()
    try:
        told, content = line.recv()
        expected = torch.frombuffer(bytearray(content), dtype=torch.bfloat16).view(_shape(THERE))
        own = KvBlocks("flashinfer-nhd", torch.zeros(_shape(HERE), dtype=torch.bfloat16, device="cuda:0"), 1)
        pool = CudaPeerPool(pb.Region.FromString(told), own, THERE)
        pool.copy([8, 0, 5], [1, 6, 2])
        torch.cuda.synchronize()
        assert pool.is_settled()
        assert torch.equal(own.memory.cpu()[:, [1, 6, 2]], expected[:, [8, 0, 5]])
        pool.close()
    finally:
        line.send("end")
        lender.join(30)
        lender.close()


@pytest.mark.gpu
@NEEDS_GPU
def test_the_exporting_process_cannot_open_its_own_pool() -> None:
    theirs, told = _lend(CudaKvMemory(), "cuda:0")
    own = KvBlocks("flashinfer-nhd", torch.zeros_like(theirs), 1)
    with pytest.raises(Unavailable):
        CudaPeerPool(told, own, THERE)

"""What is said to the CUDA driver: right for the bindings that are installed, and every failure told by its call."""

import ctypes
import inspect
import mmap
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from allroads.cuda import driver, ipc
from allroads.cuda.driver_mark import DriverMark, EventPool
from allroads.cuda.memory import CudaMemory
from allroads.cuda.stream_words import CudaLane
from allroads.errors import InvalidArgument, Unavailable
from allroads.mesh.process_memory import ProcessMemoryTransport
from allroads.mesh.region_transport import FIRST_SLOT, HEADER
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.transports import TRANSPORTS, transports_for
from torch import Tensor

bindings = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
no_driver = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA driver here")
HANDLE = bytes(range(64))
ADDRESS = 1 << 40
UUID_CALL = "cuDeviceGetUuid_v2" if hasattr(bindings, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"


class ScriptedDriver:
    """The driver's functions, each noting its arguments; those that are told to fail do."""

    def __init__(self, **failing: str) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.failing = failing
        self.returns: dict[str, tuple[Any, ...]] = {
            "cuCtxGetStreamPriorityRange": (0, -5),
            UUID_CALL: (SimpleNamespace(bytes=bytes(range(16))),),
            "cuStreamCreateWithPriority": (77,),
            "cuMemAlloc": (ADDRESS,),
            "cuIpcGetMemHandle": (ipc._handle_of(HANDLE),),
            "cuIpcOpenMemHandle": (ADDRESS,),
            "cuMemGetAddressRange": (ADDRESS, 1 << 21),
            "cuMemHostGetDevicePointer": (ADDRESS,),
        }
        self.CUresult = bindings.CUresult

    def __getattr__(self, name: str) -> Any:
        known = getattr(bindings, name)
        if not name.startswith("cu"):
            return known

        def function(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            return getattr(bindings.CUresult, self.failing.get(name, "CUDA_SUCCESS")), *self.returns.get(name, ())

        return function

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls if not name.startswith("cuCtxP")]


class PlainMemory:
    """In the place of `CudaMemory`, which needs a GPU to be seen as a tensor."""

    def __init__(self, address: int, size_bytes: int, handle: bytes, *_: Any, give_back: Any, **__: Any) -> None:
        self.address, self.size_bytes, self.handle = address, size_bytes, handle
        self.close = lambda: give_back(address)


Scripted = Callable[..., tuple[ScriptedDriver, ipc.CudaIpcDevice]]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    monkeypatch.setattr(ipc, "CudaMemory", PlainMemory)

    def start(**failing: str) -> tuple[ScriptedDriver, ipc.CudaIpcDevice]:
        script = ScriptedDriver()
        monkeypatch.setattr(driver, "_binding", lambda: script)
        device = ipc.CudaIpcDevice(torch.device("cuda", 0), 0, "context")
        script.calls.clear()
        script.failing = failing
        return script, device

    return start


def num_parameters(name: str) -> int:
    """As the binding's own description tells."""
    told = re.match(rf"{name}\((.*?)\)", inspect.getdoc(getattr(bindings, name)) or "")
    assert told is not None
    return len([part for part in told[1].split(",") if part])


def require_right(script: ScriptedDriver) -> None:
    for name, arguments in script.calls:
        assert len(arguments) == num_parameters(name), name


def test_memory_is_allocated_whole_exported_and_given_back(scripted: Scripted) -> None:
    script, device = scripted()
    memory = device.allocate(100)
    assert (memory.handle, memory.size_bytes) == (HANDLE, 100)
    memory.close()
    assert script.names == [
        "cuMemAlloc", "cuMemsetD8Async", "cuStreamSynchronize", "cuIpcGetMemHandle", "cuMemFree",
    ]  # fmt: skip
    assert ("cuMemAlloc", (2 * 1024 * 1024,)) in script.calls, "nobody else's memory lies in the same block"
    require_right(script)
    assert device.uuid == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_memory_is_opened_as_far_as_it_reaches_and_closed(scripted: Scripted) -> None:
    script, device = scripted()
    device.open(HANDLE, 1 << 21).close()
    assert script.names == ["cuIpcOpenMemHandle", "cuMemGetAddressRange", "cuIpcCloseMemHandle"]
    (_, (handle, flags)) = next(call for call in script.calls if call[0] == "cuIpcOpenMemHandle")
    assert ctypes.string_at(handle.getPtr(), 64) == HANDLE
    assert flags == int(bindings.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    require_right(script)

    script.calls.clear()
    with pytest.raises(InvalidArgument, match="not valid"):
        device.open(HANDLE, (1 << 21) + 1)
    assert script.names[-1] == "cuIpcCloseMemHandle", "nothing stays open"


@pytest.mark.parametrize("name", ["cuMemsetD8Async", "cuStreamSynchronize", "cuIpcGetMemHandle"])
def test_an_export_that_fails_leaves_no_memory(scripted: Scripted, name: str) -> None:
    script, device = scripted(**{name: "CUDA_ERROR_NOT_SUPPORTED"})
    with pytest.raises(Unavailable, match=f"^{name} failed: CUDA_ERROR_NOT_SUPPORTED$"):
        device.allocate(100)
    assert script.names[-1] == "cuMemFree"


def test_too_little_memory_is_told(scripted: Scripted) -> None:
    script, device = scripted(cuMemAlloc="CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(Unavailable, match="cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(100)
    assert script.names == ["cuMemAlloc"]
    pushed = [name for name, _ in script.calls if name.startswith("cuCtxP")]
    assert pushed == ["cuCtxPushCurrent", "cuCtxPopCurrent"], "the thread's context is its own again"


def test_words_are_written_and_waited_for_on_the_stream(scripted: Scripted) -> None:
    script, _ = scripted()
    stream: Any = SimpleNamespace(cuda_stream=5)
    words: Any = SimpleNamespace(address=ADDRESS)
    lane = CudaLane(stream, EventPool("context"))
    lane.put_word(words, 8, 3)
    lane.wait_word(words, 12, 0xFFFFFFFF)
    geq = int(bindings.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
    with_fence = int(bindings.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT)
    assert [call for call in script.calls if call[0].startswith("cuStream")] == [
        ("cuStreamWriteValue32", (5, ADDRESS + 8, 3, with_fence)),
        ("cuStreamWaitValue32", (5, ADDRESS + 12, 0xFFFFFFFF, geq)),
    ]
    require_right(script)


def test_marks_are_events_of_the_driver_and_used_again(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    script, _ = scripted()
    script.returns["cuEventCreate"] = (8,)
    events = EventPool("context")
    stream: Any = SimpleNamespace(cuda_stream=5, device=torch.device("cuda", 0))
    joining: Any = SimpleNamespace(cuda_stream=6)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: joining)
    kept: list[object] = []
    mark, tensor = DriverMark(stream, events), cast("Tensor", SimpleNamespace(record_stream=kept.append))
    mark.join([tensor])
    assert kept == [joining]
    assert mark.is_reached()
    script.failing["cuEventQuery"] = "CUDA_ERROR_NOT_READY"
    assert not mark.is_reached()
    script.failing["cuEventQuery"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(Unavailable, match=r"^cuEventQuery failed: CUDA_ERROR_ILLEGAL_ADDRESS$"):
        mark.is_reached()
    assert script.calls[1:3] == [
        ("cuEventCreate", (int(bindings.CUevent_flags.CU_EVENT_DISABLE_TIMING),)),
        ("cuEventRecord", (8, 5)),
    ]
    assert ("cuStreamWaitEvent", (6, 8, 0)) in script.calls
    require_right(script)

    del mark
    script.calls.clear()
    DriverMark(stream, events)
    assert script.names == ["cuEventRecord"], "nothing is made or ended"


@pytest.mark.parametrize(
    ("version", "is_good"), [("12.8.0", False), ("12.9.0", False), ("12.9.1", True), ("13.0.0", True)]
)
def test_bindings_that_keep_the_lock_of_python_are_refused(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, version: str, *, is_good: bool
) -> None:
    """They would keep it from the thread that ends waits."""
    _, device = scripted()
    monkeypatch.setattr("cuda.bindings.__version__", version)
    with nullcontext() if is_good else pytest.raises(Unavailable, match=r"12\.9\.1 or newer"):
        device.register(mmap.mmap(-1, mmap.PAGESIZE)).close()


def test_words_of_the_host_are_registered_for_the_device_and_given_back(scripted: Scripted) -> None:
    script, device = scripted()
    mapped = mmap.mmap(-1, mmap.PAGESIZE)
    words = device.register(mapped)
    place = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    assert words.address == ADDRESS, "the device's, which need not be the host's"
    flags = bindings.CU_MEMHOSTREGISTER_PORTABLE | bindings.CU_MEMHOSTREGISTER_DEVICEMAP
    assert ("cuMemHostRegister", (place, mmap.PAGESIZE, flags)) in script.calls
    assert ("cuMemHostGetDevicePointer", (place, 0)) in script.calls

    script.calls.clear()
    mapped[64:68] = (0xFFFFFFFF).to_bytes(4, sys.byteorder)
    assert (words.load(64), words.load(60)) == (0xFFFFFFFF, 0)
    words.store(128, 7)
    assert mapped[124:136] == bytes(4) + (7).to_bytes(4, sys.byteorder) + bytes(4)
    assert script.calls == [], "the host asks CUDA for nothing"

    words.close()
    words.close()
    assert script.names == ["cuMemHostUnregister"]
    assert ("cuMemHostUnregister", (place,)) in script.calls
    require_right(script)
    for use in (lambda: words.load(0), lambda: words.store(0, 1)):
        with pytest.raises(ValueError, match="closed"):
            use()
    mapped.close()


@pytest.mark.parametrize("name", ["cuMemHostRegister", "cuMemHostGetDevicePointer"])
def test_words_that_the_device_does_not_reach_leave_nothing(scripted: Scripted, name: str) -> None:
    script, device = scripted(**{name: "CUDA_ERROR_NOT_SUPPORTED"})
    mapped = mmap.mmap(-1, mmap.PAGESIZE)
    with pytest.raises(Unavailable, match=f"^{name} failed: CUDA_ERROR_NOT_SUPPORTED$"):
        device.register(mapped)
    assert script.names[-1] == ("cuMemHostRegister" if name == "cuMemHostRegister" else "cuMemHostUnregister")
    mapped.close()


def test_words_are_closed_also_where_the_driver_fails(scripted: Scripted) -> None:
    script, device = scripted()
    mapped = mmap.mmap(-1, mmap.PAGESIZE)
    words = device.register(mapped)
    script.failing["cuMemHostUnregister"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(Unavailable, match=r"^cuMemHostUnregister failed"):
        words.close()
    mapped.close()


class HostLane(CudaLane):
    """A lane whose stream is the host itself, for what torch does in one."""

    def __init__(self) -> None:
        stream: Any = SimpleNamespace(device=torch.device("cpu"))
        super().__init__(stream, EventPool("context"))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> CudaMemory:
    """Of the host, where torch is told of it as of a GPU's."""
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    script = ScriptedDriver()
    monkeypatch.setattr(driver, "_binding", lambda: script)
    held = torch.zeros(256, dtype=torch.uint8)

    def as_tensor(array: Any, device: torch.device) -> Tensor:
        told = array.__cuda_array_interface__
        assert (told["shape"], told["typestr"], told["data"]) == ((256,), "|u1", (ADDRESS, False))
        return held

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    return CudaMemory(
        ADDRESS, 256, HANDLE, torch.device("cuda", 0),
        context="context", give_back=lambda address: driver.call("cuMemFree", address),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_go_in_and_out_of_memory_as_they_are(memory: CudaMemory, dtype: torch.dtype) -> None:
    lane, sent = HostLane(), torch.arange(24).reshape(4, 6).to(dtype).T
    lane.copy_in(memory, 32, sent)
    lane.copy_in(memory, 16, torch.tensor(1.5, dtype=dtype))
    got, single = lane.copy_out(memory, 32, dtype, (6, 4)), lane.copy_out(memory, 16, dtype, ())
    assert torch.equal(got, sent)
    assert single.item() == 1.5
    assert lane.fetch(memory, 16, dtype.itemsize) == bytes(single.view(1).view(torch.uint8).tolist())

    memory.view(0, 8).copy_(torch.tensor([7]).view(torch.uint8))
    lane.blank_unless(memory, 0, 7, [got, single])
    assert torch.equal(got, sent)
    lane.blank_unless(memory, 0, 8, [got, single])
    assert got.isnan().all()
    assert single.isnan()


def test_what_torch_says_of_the_gpu_is_told(memory: CudaMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tensor: Tensor, *_: object, **__: object) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Tensor, "copy_", broken)
    with pytest.raises(Unavailable, match="torch failed on the GPU: CUDA error: an illegal memory access"):
        HostLane().copy_in(memory, 0, torch.zeros(2))


def test_memory_that_torch_cannot_see_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(array: Any, device: torch.device) -> Tensor:
        raise RuntimeError("CUDA error: invalid device context")

    monkeypatch.setattr(torch, "as_tensor", broken)
    with pytest.raises(Unavailable, match="torch failed on the GPU: CUDA error: invalid device context"):
        CudaMemory(ADDRESS, 256, HANDLE, torch.device("cuda", 0), context="context", give_back=lambda _: None)


def test_memory_ends_once(memory: CudaMemory) -> None:
    memory.close()
    memory.close()
    with pytest.raises(ValueError, match="closed"):
        memory.view(0, 1)
    script = driver._binding()
    assert isinstance(script, ScriptedDriver)
    assert script.names == ["cuMemFree"]
    require_right(script)


@pytest.mark.parametrize("name", [UUID_CALL, "cuStreamCreateWithPriority", "cuCtxGetStreamPriorityRange"])
def test_a_device_that_fails_is_told_by_the_call(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    script = ScriptedDriver(**{name: "CUDA_ERROR_UNKNOWN"})
    monkeypatch.setattr(driver, "_binding", lambda: script)
    with pytest.raises(Unavailable, match=f"{name} failed: CUDA_ERROR_UNKNOWN"):
        ipc.CudaIpcDevice(torch.device("cuda", 0), 0, "context")


CALLS: dict[str, tuple[Any, ...]] = {
    "cuInit": (0,),
    "cuDeviceGet": (0,),
    "cuDeviceGetUuid": (0,),
    "cuDevicePrimaryCtxRetain": (0,),
    "cuCtxPopCurrent": (),
    "cuCtxGetStreamPriorityRange": (),
    "cuStreamCreateWithPriority": (1, 0),
    "cuStreamSynchronize": (7,),
    "cuStreamWaitEvent": (7, 8, 0),
    "cuEventCreate": (2,),
    "cuEventRecord": (8, 7),
    "cuEventQuery": (8,),
    "cuMemAlloc": (64,),
    "cuMemsetD8Async": (ADDRESS, 0, 64, 7),
    "cuMemFree": (ADDRESS,),
    "cuMemGetAddressRange": (ADDRESS,),
    "cuMemHostRegister": (ADDRESS, 4096, 3),
    "cuMemHostGetDevicePointer": (ADDRESS, 0),
    "cuMemHostUnregister": (ADDRESS,),
    "cuIpcGetMemHandle": (ADDRESS,),
    "cuIpcCloseMemHandle": (ADDRESS,),
    "cuStreamWriteValue32": (7, ADDRESS, 0xFFFFFFFF, 0),
    "cuStreamWaitValue32": (7, ADDRESS, 0xFFFFFFFF, 0),
}


@no_driver
@pytest.mark.parametrize("name", CALLS)
def test_without_a_driver_each_call_takes_its_arguments_and_says_what_is_missing(name: str) -> None:
    with pytest.raises(Unavailable, match=f"^{name}: the CUDA driver is missing or too old"):
        driver.call(name, *CALLS[name])


@no_driver
def test_without_a_driver_there_is_no_device_and_tensors_find_another_way() -> None:
    with pytest.raises(Unavailable, match=r"^cuInit: the CUDA driver is missing"):
        ipc.find_ipc_device(0)
    way = transports_for(torch.device("cuda", 0))
    assert [transport.name for transport in way] == ["process memory", "CUDA IPC", "shared memory"]
    sender = TensorSender("router", slot_bytes=64, transports=way[1:])
    region = sender.open()
    assert region is not None
    assert region.WhichOneof("kind") == "shared_memory"
    sender.close()


def test_bindings_that_are_missing_or_too_old_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="cuNoSuchCall is not in this cuda-bindings"):
        driver.call("cuNoSuchCall")

    def missing(name: str) -> Any:
        raise ImportError("No module named 'cuda'")

    monkeypatch.setattr(driver, "import_module", missing)
    with pytest.raises(Unavailable, match=r"cuda-bindings cannot be imported .* install allroads\[gpu\]"):
        driver.call("cuInit", 0)


@pytest.mark.parametrize("handle", [b"", b"x" * 63, b"x" * 65])
def test_handles_of_another_length_never_reach_the_driver(handle: bytes) -> None:
    with pytest.raises(InvalidArgument, match="not valid"):
        ipc._handle_of(handle)
    assert ipc._bytes_of(ipc._handle_of(HANDLE)) == HANDLE


def test_who_has_its_tensors_on_the_cpu_offers_no_cuda() -> None:
    assert transports_for(torch.device("cpu")) is TRANSPORTS
    assert {transport.kind for transport in TRANSPORTS} == {"local", "shared_memory"}


class NotedMark:
    """In the place of an event."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.joined = device, 0

    def join(self, tensors: list[Tensor]) -> None:
        self.joined += 1
        assert all(tensor.device == self.device for tensor in tensors)


def test_in_one_process_a_tensor_of_a_device_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's meta device has tensors that can be copied and not read: one that went by the host would fail."""
    marks: list[NotedMark] = []

    def mark_here(device: torch.device) -> NotedMark:
        marks.append(NotedMark(device))
        return marks[-1]

    monkeypatch.setattr("allroads.mesh.process_memory.mark_here", mark_here)
    transports = [ProcessMemoryTransport()]
    sender = TensorSender("router", slot_bytes=4096, transports=transports)
    receiver = TensorReceiver("home", transports)
    region = sender.open()
    assert region is not None
    sender.on_registered(receiver.register(region))
    sent = torch.empty(3, 4, device="meta").T
    received = receiver.read(sender.pack(1, [sent, torch.arange(3)]))
    assert [tensor.device.type for tensor in received.tensors] == ["meta", "cpu"]
    assert received.tensors[0].is_contiguous()
    assert received.tensors[0].shape == (4, 3)
    received.join()
    assert [mark.joined for mark in marks] == [1]

    references = sender.pack(2, [sent])
    references[0].shape[:] = [3, 4]
    with pytest.raises(InvalidArgument, match="not valid"):
        receiver.read(references)
    host = receiver.read(sender.pack(3, [torch.ones(2)]))
    host.join()
    assert (len(marks), host.mark) == (2, None)
    assert sender.pack(4, [torch.ones(2)])[0].slice.offset_bytes >= FIRST_SLOT + HEADER.size
    sender.close()

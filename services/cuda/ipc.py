"""A GPU whose memory other processes can open, by CUDA IPC.

All goes through the driver's API and the device's primary context, which is torch's too. Handles travel as their raw
64 bytes, so peers need not have the same torch.
"""

import ctypes
import mmap
import sys
from functools import cache
from threading import Lock
from typing import Any
from uuid import UUID

import torch
from torch import Tensor

from ..errors import InvalidArgument, Unavailable
from .capturing import CAPTURING
from .device_memory import HANDLE_BYTES, Lane
from .driver import binding_type, call, entered, has_call, require_calls_that_hold_nobody_up
from .driver_mark import EventPool
from .host_words import CudaHostWords
from .memory import CudaMemory
from .stream_words import CudaLane

_GRANULARITY = 2 * 1024 * 1024
"""Smaller allocations share a block with others, and with its block a handle would give those away."""
_NON_BLOCKING = 1
_LAZY_PEER_ACCESS = 1
_FINDING = Lock()
"""Threads that look for a device at once shall find the same one."""


class CudaIpcDevice:
    """One GPU. Made by `find_ipc_device`, once in a process."""

    def __init__(self, torch_device: torch.device, number: Any, context: Any) -> None:
        self.torch_device, self._context = torch_device, context
        self.uuid = _uuid(number)
        self._lock = Lock()
        self._events = EventPool(context)
        self._free_lanes: list[Lane] = []
        with entered(context):
            least, greatest = call("cuCtxGetStreamPriorityRange")
            # Streams of one priority may share a queue of the hardware, where a wait holds up all that is behind it. So
            # lanes are not among the streams of models, nor with the one that new memory is cleared on.
            self._clearing = int(call("cuStreamCreateWithPriority", _NON_BLOCKING, greatest))
            self._lane_priority = min(least, greatest + 1)

    def allocate(self, size_bytes: int) -> CudaMemory:
        """See `IpcDevice`."""
        whole = -(-size_bytes // _GRANULARITY) * _GRANULARITY
        with CAPTURING, entered(self._context):
            address = int(call("cuMemAlloc", whole))
            try:
                call("cuMemsetD8Async", address, 0, whole, self._clearing)
                call("cuStreamSynchronize", self._clearing)
                handle = _bytes_of(call("cuIpcGetMemHandle", address))
                return self._memory(address, size_bytes, handle, "cuMemFree")
            except BaseException:
                call("cuMemFree", address)
                raise

    def open(self, handle: bytes, size_bytes: int) -> CudaMemory:
        """See `IpcDevice`."""
        with CAPTURING, entered(self._context):
            address = int(call("cuIpcOpenMemHandle", _handle_of(handle), _LAZY_PEER_ACCESS))
            try:
                base, whole = call("cuMemGetAddressRange", address)
                if int(base) != address or whole < size_bytes:
                    raise InvalidArgument("the region is not valid")
                return self._memory(address, size_bytes, handle, "cuIpcCloseMemHandle")
            except BaseException:
                call("cuIpcCloseMemHandle", address)
                raise

    def register(self, memory: mmap.mmap) -> CudaHostWords:
        """See `IpcDevice`."""
        require_calls_that_hold_nobody_up()
        return CudaHostWords(memory, self._context)

    def holds(self, tensor: Tensor) -> bool:
        """See `IpcDevice`."""
        return tensor.device == self.torch_device

    def current_lane(self) -> CudaLane:
        """See `IpcDevice`: torch's current stream."""
        return CudaLane(torch.cuda.current_stream(self.torch_device), self._events)

    def new_lane(self) -> Lane:
        """See `IpcDevice`. Not one of torch's, which hands out the same few again and again."""
        with self._lock:
            if self._free_lanes:
                return self._free_lanes.pop()
        with entered(self._context):
            stream = int(call("cuStreamCreateWithPriority", _NON_BLOCKING, self._lane_priority))
        return CudaLane(torch.cuda.ExternalStream(stream, device=self.torch_device), self._events)

    def free_lane(self, lane: Lane) -> None:
        """See `IpcDevice`. Torch keeps memory by stream, so streams are used again instead of ended."""
        with self._lock:
            self._free_lanes.append(lane)

    def _memory(self, address: int, size_bytes: int, handle: bytes, ender: str) -> CudaMemory:
        return CudaMemory(
            address,
            size_bytes,
            handle,
            self.torch_device,
            context=self._context,
            give_back=lambda at: call(ender, at),
        )


def find_ipc_device(index: int) -> CudaIpcDevice:
    """The GPU that torch calls `cuda:index`.

    Raises:
        Unavailable: there is none, or its memory cannot be shared; says why.
    """
    with _FINDING:
        return _ipc_device(index)


@cache
def _ipc_device(index: int) -> CudaIpcDevice:
    if sys.platform != "linux":
        raise Unavailable("CUDA IPC is used on Linux only")
    call("cuInit", 0)
    if not torch.cuda.is_available():
        raise Unavailable("torch finds no GPU")
    torch.cuda.init()
    number = call("cuDeviceGet", index)
    attributes = binding_type("CUdevice_attribute")
    if call("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_INTEGRATED, number):
        raise Unavailable("the GPU has no memory of its own that could be shared (it is integrated)")
    if not call("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, number):
        raise Unavailable("the GPU's driver does not support CUDA IPC here (under WSL it does not)")
    return CudaIpcDevice(torch.device("cuda", index), number, call("cuDevicePrimaryCtxRetain", number))


def _uuid(number: Any) -> str:
    """The second call tells parts of a divided GPU apart (MIG); from CUDA 13 on the first does so too."""
    name = "cuDeviceGetUuid_v2" if has_call("cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    return str(UUID(bytes=bytes(call(name, number).bytes)))


def _bytes_of(handle: Any) -> bytes:
    # By address: what the field is called, and whether there is one, depends on the version of the bindings.
    return ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES)


def _handle_of(data: bytes) -> Any:
    if len(data) != HANDLE_BYTES:
        raise InvalidArgument("the region is not valid")
    handle = binding_type("CUipcMemHandle")()
    ctypes.memmove(int(handle.getPtr()), data, HANDLE_BYTES)
    return handle

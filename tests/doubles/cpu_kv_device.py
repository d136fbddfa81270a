"""A "GPU" of main memory whose work is done late: copies count as made only when a test says so."""

import secrets
from dataclasses import dataclass, field

import torch
from allroads.cuda.device_memory import HANDLE_BYTES
from allroads.errors import InvalidArgument, Unavailable
from torch import Tensor


@dataclass(eq=False)
class CpuMemory:
    size_bytes: int
    handle: bytes
    content: Tensor
    address: int = 0
    num_closed: int = 0

    def view(self, offset: int, num_bytes: int) -> Tensor:
        return self.content[offset : offset + num_bytes]

    def close(self) -> None:
        self.num_closed += 1


@dataclass(eq=False)
class CpuMark:
    device: "CpuKvDevice"

    def is_reached(self) -> bool:
        return self.device.is_done

    def join(self, tensors: object) -> None:
        raise AssertionError("nobody joins")


@dataclass(eq=False)
class CpuKvDevice:
    """One device as two processes see it."""

    uuid: str = "GPU-1"
    is_done: bool = True
    memories: dict[bytes, CpuMemory] = field(default_factory=dict)
    opened: list[CpuMemory] = field(default_factory=list)
    room_bytes: int = 1 << 30

    def allocate(self, size_bytes: int) -> CpuMemory:
        if size_bytes > self.room_bytes:
            raise Unavailable("cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY")
        handle = secrets.token_bytes(HANDLE_BYTES)
        self.memories[handle] = CpuMemory(size_bytes, handle, torch.zeros(size_bytes, dtype=torch.uint8))
        return self.memories[handle]

    def open(self, handle: bytes, size_bytes: int) -> CpuMemory:
        if len(handle) != HANDLE_BYTES:
            raise InvalidArgument("the region is not valid")
        memory = self.memories.get(handle)
        if memory is None:
            raise Unavailable("cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_VALUE")
        if memory.size_bytes < size_bytes:
            raise InvalidArgument("the region is not valid")
        self.opened.append(CpuMemory(size_bytes, handle, memory.content))
        return self.opened[-1]

    def current_lane(self) -> "CpuKvDevice":
        return self

    def mark(self) -> CpuMark:
        return CpuMark(self)

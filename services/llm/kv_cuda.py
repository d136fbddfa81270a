"""KV pools of processes on one GPU: the lender's in memory of the driver's, which the borrower opens by its handle.

The first page is the probe's, the blocks follow. Copies join the borrower's stream, so whatever its model does later
comes after them, and the host does not wait.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..cuda.device_memory import DeviceMemory, Mark
from ..cuda.ipc import find_ipc_device
from ..cuda.upload import upload
from ..engine.kv_blocks import KvBlocks
from ..errors import StartupError, Unavailable
from ..mesh.region_transport import PROBE
from ..mesh.tensors import refuse
from ..mesh.wire import common_pb2 as pb
from .kv_shared_memory import PAGE_BYTES, new_probe

_BYTES_PER_TURN = 512 * 1024 * 1024
"""Copied in a millisecond or two."""
_PIECE_BYTES = 16 * 1024 * 1024
"""Gathered at once, in memory of torch's."""


class KvLane(Protocol):
    """The calling thread's work on a GPU."""

    def mark(self) -> Mark:
        """Its end so far."""
        ...


class KvDevice(Protocol):
    """A GPU whose memory processes can share; see `IpcDevice`."""

    uuid: str

    def allocate(self, size_bytes: int) -> DeviceMemory:
        """New memory, all zero."""
        ...

    def open(self, handle: bytes, size_bytes: int) -> DeviceMemory:
        """Another process's memory."""
        ...

    def current_lane(self) -> KvLane:
        """The calling thread's work."""
        ...


FindDevice = Callable[[int], KvDevice]


class CudaKvMemory:
    """The lender's end. See `OwnKvMemory`."""

    def __init__(self, find: FindDevice = find_ipc_device) -> None:
        self._find = find
        self._probe = new_probe()
        self._device: KvDevice | None = None
        self._memory: DeviceMemory | None = None

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `OwnKvMemory`."""
        num_bytes = math.prod(shape) * dtype.itemsize
        try:
            self._device = self._find(device.index or 0)
            self._memory = self._device.allocate(PAGE_BYTES + num_bytes)
        except Unavailable as error:
            raise StartupError(
                f"a KV pool of {num_bytes} bytes that others may copy from cannot be made on {device}: "
                f"{error.message}; lower num_kv_tokens where memory is short, or set lends_kv to false",
                field="lends_kv",
            ) from error
        self._memory.view(0, PROBE.size).copy_(torch.frombuffer(bytearray(self._probe), dtype=torch.uint8))
        return self._memory.view(PAGE_BYTES, num_bytes).view(dtype).view(shape)

    def describe(self) -> pb.Region:
        """See `OwnKvMemory`."""
        if self._device is None or self._memory is None:
            raise ValueError("there is no KV pool")
        place = pb.CudaIpcRegion(handle=self._memory.handle, device_uuid=self._device.uuid)
        return pb.Region(size_bytes=self._memory.size_bytes, cuda_ipc=place, probe=self._probe)

    def settle(self) -> None:
        """See `OwnKvMemory`. Between steps there is mostly nothing to wait for."""
        if self._memory is not None:
            _fetch(self._memory, 1)

    def close(self) -> None:
        """See `OwnKvMemory`: the memory is the model's as long as the process lives, and has no name to take away."""


class CudaPeerPool:
    """A lender's pool, at the borrower. See `PeerPool`."""

    def __init__(self, told: pb.Region, own: KvBlocks, num_blocks: int, *, find: FindDevice = find_ipc_device) -> None:
        """`told`: of a size that fits so many blocks; all else of it is untrusted.

        Raises:
            InvalidArgument: no lender of ours would tell this.
            Unavailable: the pool is out of reach; says why.
        """
        self._device = find(own.memory.device.index or 0)
        if told.cuda_ipc.device_uuid != self._device.uuid:
            raise Unavailable("it is on another GPU")
        self._memory = self._device.open(told.cuda_ipc.handle, told.size_bytes)
        if _fetch(self._memory, PROBE.size) != told.probe:
            self._memory.close()
            refuse("the probe is not what was told")
        memory = self._memory.view(PAGE_BYTES, told.size_bytes - PAGE_BYTES)
        self._blocks = memory.view(own.memory.dtype).view(own.shape_of(num_blocks))
        self._own = own
        self._mark: Mark | None = None
        self._blocks_per_piece = max(1, _PIECE_BYTES // own.block_bytes)
        self.blocks_per_turn = max(1, _BYTES_PER_TURN // own.block_bytes)

    @torch.inference_mode()
    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """See `PeerPool`."""
        own = self._own
        for begin in range(0, len(source), self._blocks_per_piece):
            part = slice(begin, begin + self._blocks_per_piece)
            there, here = (upload(list(blocks[part]), own.memory.device, torch.int64) for blocks in (source, target))
            try:
                own.memory.index_copy_(own.dim, here, self._blocks.index_select(own.dim, there))
            except torch.OutOfMemoryError as error:
                raise Unavailable("the GPU has no memory free to copy its KV through") from error
        self._mark = self._device.current_lane().mark()

    def is_settled(self) -> bool:
        """See `PeerPool`."""
        return self._mark is None or self._mark.is_reached()

    def close(self) -> None:
        """See `PeerPool`. Waits for copies that were begun: what they read must not go away."""
        if not self.is_settled():
            _fetch(self._memory, 1)
        self._mark = None
        self._memory.close()


def _fetch(memory: DeviceMemory, num_bytes: int) -> bytes:
    """The first bytes, once all work that the calling thread has queued is done."""
    return memory.view(0, num_bytes).cpu().numpy().tobytes()

"""Memory for KV that another process can reach, and the memory of another process: one kind for each kind of device."""

import math
from typing import Protocol

import torch
from torch import Tensor

from ..engine.kv_blocks import KvBlocks
from ..engine.kv_peer import PeerPool
from ..errors import InvalidArgument
from ..mesh.region_transport import PROBE
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2
from .kv_cuda import CudaKvMemory, CudaPeerPool
from .kv_shared_memory import PAGE_BYTES, SharedKvMemory, SharedPeerPool


class OwnKvMemory(Protocol):
    """A KV pool that can be lent."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `Allocate`; called once.

        Raises:
            StartupError: there is too little of it, or it cannot be shared here.
        """
        ...

    def describe(self) -> pb.Region:
        """How a borrower is told of it, once it is there."""
        ...

    def settle(self) -> None:
        """Wait until all that this thread had the device write is written."""
        ...

    def close(self) -> None:
        """Nobody else may open it from now on. Harmless when repeated."""
        ...


def own_kv_memory(device: str) -> OwnKvMemory:
    """For a KV pool on a device, as torch names it."""
    return CudaKvMemory() if device.partition(":")[0] == "cuda" else SharedKvMemory()


def open_peer_pool(told: model_pb2.KvPool, own: KvBlocks) -> PeerPool:
    """A lender's pool, to copy from into `own`, which lies in the same way. Everything told is untrusted.

    Raises:
        InvalidArgument: no lender of ours would tell this.
        Unavailable: the pool is out of reach; says why.
    """
    kind = told.region.WhichOneof("kind")
    of_device = "cuda_ipc" if own.memory.device.type == "cuda" else "shared_memory"
    if kind != of_device:
        raise InvalidArgument(f"its KV is in memory of kind {kind}; here it must be {of_device}")
    size_bytes = math.prod(own.shape_of(told.num_blocks)) * own.memory.itemsize
    is_right = told.num_blocks > 0 and told.region.size_bytes == PAGE_BYTES + size_bytes
    if not is_right or len(told.region.probe) != PROBE.size:
        raise InvalidArgument("its KV pool is not valid")
    if kind == "cuda_ipc":
        return CudaPeerPool(told.region, own, told.num_blocks)
    return SharedPeerPool(told.region, own, told.num_blocks)

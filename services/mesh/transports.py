"""The transports that this process offers to its peers."""

from functools import cache, partial

import torch

from ..cuda.ipc import find_ipc_device
from .cuda_ipc import CudaIpcTransport
from .process_memory import ProcessMemoryTransport
from .region_transport import RegionTransport
from .shared_memory import SharedMemoryTransport

CPU = torch.device("cpu")

TRANSPORTS: tuple[RegionTransport, ...] = (ProcessMemoryTransport(), SharedMemoryTransport())
"""For tensors of the host, best first. Where a peer can use none of them, tensors go inline."""


@cache
def transports_for(device: torch.device) -> tuple[RegionTransport, ...]:
    """For tensors that lie on a device, or are wanted there, best first."""
    if device.type != "cuda":
        return TRANSPORTS
    index = torch.cuda.current_device() if device.index is None else device.index
    in_process, *on_host = TRANSPORTS
    return in_process, _cuda_ipc(index), *on_host


@cache
def _cuda_ipc(index: int) -> CudaIpcTransport:
    """One for each GPU of this process, by its number here."""
    return CudaIpcTransport(partial(find_ipc_device, index))

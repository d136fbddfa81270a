"""Regions for peers in the same process: what is written is kept, and the reader takes it as it is.

What lies on a GPU is kept there: its copy is queued on the writer's stream, and the reader's waits for that.

Nothing of a region lies outside of the process that made it. A peer is told the key to one; whoever else
learns the key can do nothing with it, since only this process looks it up, among the regions it has made.
"""

import os
import secrets
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cuda.device_memory import Mark
from ..cuda.stream_words import mark_here
from ..errors import InvalidArgument, Unavailable
from .region_transport import Part, Received
from .tensors import Layout, bytes_of, refuse, tensor_of
from .wire import common_pb2 as pb

_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Lease:
    generation: int
    parts: dict[int, bytearray | Tensor]
    """By offset in the slot: the bytes of a tensor of the host, or a copy of one of a device."""
    mark: Mark | None
    """When the copies on a device are made."""


class ProcessRegion:
    """A region at its owner's end."""

    fault = ""

    def __init__(self, regions: MutableMapping[bytes, "ProcessRegion"], size_bytes: int, probe: bytes) -> None:
        self.size_bytes, self.probe = size_bytes, probe
        self.slots: dict[int, _Lease] = {}
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self._regions = regions

    def describe(self, region_id: int) -> pb.Region:
        """See `OwnedRegion`."""
        local = pb.LocalRegion(pid=os.getpid(), token=self.token)
        return pb.Region(region_id=region_id, size_bytes=self.size_bytes, local=local, probe=self.probe)

    def confirm(self) -> None:
        """See `OwnedRegion`. Who has found the region has it."""

    def takes(self, tensor: Tensor) -> bool:
        """See `OwnedRegion`."""
        return True

    def write(self, start: int, generation: int, parts: Sequence[Part]) -> None:
        """See `OwnedRegion`. The slot changes at once, so that nobody reads half a lease."""
        kept: dict[int, bytearray | Tensor] = {}
        device = None
        for offset, tensor in parts:
            if tensor.is_cpu:
                kept[offset] = bytearray(bytes_of(tensor))
            else:
                device, kept[offset] = tensor.device, tensor.clone(memory_format=torch.contiguous_format)
        self.slots[start] = _Lease(generation, kept, None if device is None else mark_here(device))

    def forget(self, start: int) -> None:
        """See `OwnedRegion`. The next lease waits for nobody."""

    def unlink(self) -> None:
        """See `OwnedRegion`."""
        self._regions.pop(self.token, None)

    def close(self) -> None:
        """See `OwnedRegion`."""
        self.unlink()
        self.slots.clear()


class AttachedRegion:
    """The same region at its reader's end."""

    fault = ""

    def __init__(self, region: ProcessRegion) -> None:
        self._probe, self._slots = region.probe, region.slots

    def read_probe(self) -> bytes:
        """See `PeerRegion`."""
        return self._probe

    def read(self, start: int, generation: int, parts: Sequence[tuple[int, Layout]]) -> Received:
        """See `PeerRegion`. Whoever reads the same twice gets the same memory twice."""
        lease = self._slots.get(start)
        if lease is None or lease.generation != generation:
            refuse("the lease is over")
        tensors = [_tensor(lease.parts.get(offset), layout) for offset, layout in parts]
        if lease.mark is None:
            return Received(tensors)
        return Received(tensors, lease.mark, [tensor for tensor in tensors if not tensor.is_cpu])

    def close(self) -> None:
        """See `PeerRegion`."""
        self._slots = {}


def _tensor(kept: bytearray | Tensor | None, layout: Layout) -> Tensor:
    if isinstance(kept, bytearray) and len(kept) == layout.num_bytes:
        return tensor_of(layout, kept)
    if not isinstance(kept, Tensor) or (kept.dtype, tuple(kept.shape)) != (layout.dtype, layout.shape):
        refuse("no tensor of the lease begins there")
    return kept


class ProcessMemoryTransport:
    """Both ends in one process. Made once in each: it knows the regions that can be attached."""

    name = "process memory"
    kind = "local"
    number = pb.TRANSPORT_LOCAL
    may_wait = False

    def __init__(self) -> None:
        self._regions: dict[bytes, ProcessRegion] = {}

    def create(self, size_bytes: int, probe: bytes) -> ProcessRegion:
        """See `RegionTransport`."""
        region = ProcessRegion(self._regions, size_bytes, probe)
        self._regions[region.token] = region
        return region

    def attach(self, told: pb.Region) -> AttachedRegion:
        """See `RegionTransport`."""
        region = self._regions.get(told.local.token)
        # A process that was forked has copies of its parent's regions.
        if region is None or told.local.pid != os.getpid():
            raise Unavailable("the peer is another process")
        if region.size_bytes != told.size_bytes:
            raise InvalidArgument("the region is not valid")
        return AttachedRegion(region)

"""Regions for peers in the same process: what is written is kept, and the reader takes it as it is.

Nothing of a region lies outside of the process that made it. A peer is told the key to one; whoever else
learns the key can do nothing with it, since only this process looks it up, among the regions it has made.
"""

import os
import secrets
from collections.abc import MutableMapping, Sequence

from torch import Tensor

from ..errors import InvalidArgument, Unavailable
from .region_transport import GENERATION
from .tensors import Layout, bytes_of, refuse, tensor_of
from .wire import common_pb2 as pb

_TOKEN_BYTES = 32

Slots = dict[int, tuple[int, dict[int, bytearray]]]
"""By start of the slot: generation, and the bytes of each tensor by their offset."""


class ProcessRegion:
    """A region at its owner's end."""

    def __init__(self, regions: MutableMapping[bytes, "ProcessRegion"], size_bytes: int, probe: bytes) -> None:
        self.size_bytes, self.probe = size_bytes, probe
        self.slots: Slots = {}
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self._regions = regions

    def describe(self, region_id: int) -> pb.Region:
        """See `OwnedRegion`."""
        local = pb.LocalRegion(pid=os.getpid(), token=self.token)
        return pb.Region(region_id=region_id, size_bytes=self.size_bytes, local=local, probe=self.probe)

    def write(self, start: int, generation: int, tensors: Sequence[Tensor]) -> None:
        """See `OwnedRegion`. The slot changes at once, so that nobody reads half a lease."""
        parts: dict[int, bytearray] = {}
        offset = start + GENERATION.size
        for tensor in tensors:
            parts[offset] = bytearray(bytes_of(tensor))
            offset += tensor.nbytes
        self.slots[start] = generation, parts

    def unlink(self) -> None:
        """See `OwnedRegion`."""
        self._regions.pop(self.token, None)

    def close(self) -> None:
        """See `OwnedRegion`."""
        self.unlink()
        self.slots.clear()


class AttachedRegion:
    """The same region at its reader's end."""

    def __init__(self, region: ProcessRegion) -> None:
        self._probe, self._slots = region.probe, region.slots

    def read_probe(self) -> bytes:
        """See `PeerRegion`."""
        return self._probe

    def read(self, start: int, generation: int, offset: int, layout: Layout) -> Tensor:
        """See `PeerRegion`. Whoever reads the same twice gets the same memory twice."""
        found, parts = self._slots.get(start, (0, {}))
        data = parts.get(offset)
        if found != generation or data is None or len(data) != layout.num_bytes:
            refuse("the lease is over, or no tensor of it begins there")
        return tensor_of(layout, data)

    def close(self) -> None:
        """See `PeerRegion`."""
        self._slots = {}


class ProcessMemoryTransport:
    """Both ends in one process. Made once in each: it knows the regions that can be attached."""

    name = "process memory"
    kind = "local"
    number = pb.TRANSPORT_LOCAL

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

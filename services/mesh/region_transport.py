"""The interface of whatever memory the two ends of a stream can share, and how a region of it is laid out.

A region begins with the probe and a header, and then is cut into equal slots. A slot holds the tensors of one
batch behind a header with the generation of its lease: a reader who is told of a lease that is over finds another
generation there.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..cuda.device_memory import Mark
from .tensors import Layout
from .wire import common_pb2 as pb

ALIGNMENT = 16
"""Of slots and of the tensors in them, in bytes."""
PROBE = struct.Struct("<8sQ48s")
"""How a region begins: our mark, bytes per slot, and a nonce."""
MARK = b"allroads"
GENERATION = struct.Struct("<Q")
"""How a header begins."""
HEADER = struct.Struct("<QII")
"""Generation, and nothing up to the alignment: before the first slot, and how each slot begins."""
FIRST_SLOT = PROBE.size + HEADER.size

Part = tuple[int, Tensor]
"""A tensor, and where it goes in its slot."""


@dataclass(slots=True)
class Received:
    """Tensors that have arrived, or, on a device, whose arrival is queued there."""

    tensors: list[Tensor]
    """In the order of their references; of a device's memory where the peer and its transport kept them there."""
    mark: Mark | None = None
    """When those on a device are there; None where all are."""
    marked: Sequence[Tensor] = ()

    def join(self) -> None:
        """Let what the calling thread does on the device from now on wait for the tensors; the host does not.

        For the thread that uses them, before it does. Nothing is done where all lie in the host's memory.
        """
        if self.mark is not None:
            self.mark.join(self.marked)


class OwnedRegion(Protocol):
    """A region at the end that owns it. The caller keeps within it."""

    @property
    def fault(self) -> str:
        """Why the region is of no more use; empty while it is."""
        ...

    def describe(self, region_id: int) -> pb.Region:
        """How the peer is told of it."""
        ...

    def confirm(self) -> None:
        """See that the peer, which says so, has really reached the region.

        Raises:
            Unavailable: there is no trace of it.
        """
        ...

    def takes(self, tensor: Tensor) -> bool:
        """Whether a tensor can go through the region; else it goes inline."""
        ...

    def write(self, start: int, generation: int, parts: Sequence[Part]) -> None:
        """Fill the slot at `start` with the header and a copy of each tensor, row-major, at its offset in the slot.

        Offsets ascend; between two tensors there are less than `ALIGNMENT` bytes, of any value.

        Raises:
            ResourceExhausted: the slot's former lease was not read yet, which takes no longer than a moment.
            Unavailable: the region is of no more use; says why.
        """
        ...

    def forget(self, start: int) -> None:
        """Nobody was told of the lease that was written at `start` last, so nobody reads it: the slot is free."""
        ...

    def unlink(self) -> None:
        """Nobody else may attach it; whoever has it keeps it."""
        ...

    def close(self) -> None:
        """Let go of the memory. Harmless when repeated."""
        ...


class PeerRegion(Protocol):
    """A region at the other end, for reading."""

    @property
    def fault(self) -> str:
        """Why the region is of no more use; empty while it is."""
        ...

    def read_probe(self) -> bytes:
        """How the region begins, as it lies there."""
        ...

    def read(self, start: int, generation: int, parts: Sequence[tuple[int, Layout]]) -> Received:
        """The tensors of a lease, by their offsets in the slot at `start`, which later leases leave as they are.

        Called once for each lease. What lies on a device is NaN where its lease turns out to be over.

        Raises:
            InvalidArgument: the slot's lease is of another generation, there is no such tensor, or the region is of
                no more use, see `fault`.
        """
        ...

    def close(self) -> None:
        """Let go of the memory. Harmless when repeated."""
        ...


class RegionTransport(Protocol):
    """A kind of memory that regions can lie in."""

    @property
    def name(self) -> str:
        """For log lines."""
        ...

    @property
    def kind(self) -> str:
        """The arm of `Region.kind` by which a peer is told of such a region."""
        ...

    @property
    def number(self) -> "pb.Transport.ValueType":
        """How the peer's answer calls it."""
        ...

    @property
    def may_wait(self) -> bool:
        """Whether making, attaching and confirming a region may take long, so that an event loop leaves it to a thread.

        For a device's memory they do: seconds while it is recorded.
        """
        ...

    def create(self, size_bytes: int, probe: bytes) -> OwnedRegion:
        """A new region that begins with `probe`.

        Raises:
            Unavailable: there is no such memory here, or too little of it; says why.
        """
        ...

    def attach(self, told: pb.Region) -> PeerRegion:
        """A peer's region. What was told is untrusted, but for its size and probe, which fit each other.

        Raises:
            InvalidArgument: no peer of ours would tell this.
            Unavailable: the region is out of reach; says why.
        """
        ...


def aligned(offset: int) -> int:
    """The first aligned place from an offset on."""
    return (offset + ALIGNMENT - 1) & -ALIGNMENT

"""The interface of whatever memory the two ends of a stream can share, and how a region of it is laid out.

A region is cut into equal slots. A slot holds the tensors of one batch, and begins with the generation of
its lease: a reader who is told of a lease that is over finds another generation there.
"""

import struct
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from .tensors import Layout
from .wire import common_pb2 as pb

PROBE = struct.Struct("<8sQ48s")
"""How a region begins: our mark, bytes per slot, and a nonce."""
MARK = b"allroads"
GENERATION = struct.Struct("<Q")
"""How a slot begins."""


class OwnedRegion(Protocol):
    """A region at the end that owns it. The caller keeps within it."""

    def describe(self, region_id: int) -> pb.Region:
        """How the peer is told of it."""
        ...

    def write(self, start: int, generation: int, tensors: Sequence[Tensor]) -> None:
        """Fill the slot at `start` with the generation and a copy of each tensor, end to end, row-major."""
        ...

    def unlink(self) -> None:
        """Nobody else may attach it; whoever has it keeps it."""
        ...

    def close(self) -> None:
        """Let go of the memory. Harmless when repeated."""
        ...


class PeerRegion(Protocol):
    """A region at the other end, for reading."""

    def read_probe(self) -> bytes:
        """How the region begins, as it lies there."""
        ...

    def read(self, start: int, generation: int, offset: int, layout: Layout) -> Tensor:
        """The tensor at `offset`, in the slot at `start`, which later leases leave as it is.

        Raises:
            InvalidArgument: the slot's lease is of another generation, or there is no such tensor.
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

"""Passes the tensors of batches to the peer of a stream, through a region where both can reach one.

Transports are tried in order, each by a region that the peer really reads. A batch leases one slot of the
region for all its tensors, until the peer has answered; when none is free, or the batch is too big, it
goes inline. So does a tensor that the region does not take, beside those that it does.
"""

import logging
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from ..errors import Unavailable
from .region_transport import FIRST_SLOT, HEADER, MARK, PROBE, OwnedRegion, Part, RegionTransport, aligned
from .tensors import inline_reference, slice_reference, wire_dtype
from .transports import CPU, transports_for
from .wire import common_pb2 as pb
from .wire.common_pb2 import Registered

logger = logging.getLogger(__name__)

_NONCE_BYTES = 48


@dataclass(frozen=True, slots=True)
class _Lease:
    slot: int
    generation: int


class TensorSender:
    """The sender's end. `pack` may be called from another thread than the rest.

    For each stream: `open`, then `on_registered` with each answer, and tell the peer of each region that
    these return; `close`. Until the peer has agreed to a region, and where it agrees to none, tensors go
    inline.
    """

    def __init__(
        self,
        peer: str,
        *,
        slot_bytes: int,
        num_slots: int = 16,
        device: torch.device = CPU,
        transports: Sequence[RegionTransport] | None = None,
    ) -> None:
        """`slot_bytes`: room for one batch. `device`: where its tensors lie. `transports`: if not that device's."""
        self._peer = peer
        self._slot_bytes = HEADER.size + aligned(slot_bytes)
        self._num_slots = num_slots
        self._transports = transports_for(device) if transports is None else tuple(transports)
        self._untried: Iterator[RegionTransport] = iter(())
        self._refusals: list[str] = []
        self._lock = Lock()
        self._region: OwnedRegion | None = None
        self._region_id = 0
        self._transport: RegionTransport | None = None
        self._registered = False
        self._generation = 0
        self._free: deque[int] = deque()
        self._leases: dict[int, _Lease] = {}

    def open(self) -> pb.Region | None:
        """Begin with a new stream: the first region that the peer is to try; None where there is none."""
        self.close()
        self._untried, self._refusals = iter(self._transports), []
        return self._next_offer()

    def on_registered(self, answer: Registered) -> pb.Region | None:
        """Use the region from now on if the peer can, else offer the next one: None where there is none.

        A peer that can use its region no longer says so in the same way.
        """
        transport, region = self._transport, self._region
        if transport is None or region is None or answer.region_id != self._region_id:
            return None
        if answer.transport != transport.number:
            return self._next_after(f"not through {transport.name}: {answer.reason}")
        if self._registered:
            return None
        try:
            region.confirm()
        except Unavailable as error:
            return self._next_after(f"not through {transport.name}: {error.message}")
        with self._lock:
            if self._region is not None:
                # The peer has it, so it need not be found any more.
                self._region.unlink()
                self._registered = True
        why = "; ".join([answer.reason, *self._refusals])
        logger.info("tensors to %s go through %s: %s", self._peer, transport.name, why)
        return None

    def pack(self, batch_id: int, tensors: Sequence[Tensor]) -> list[pb.TensorRef]:
        """References to the tensors of a batch, valid until `release(batch_id)`.

        Raises:
            InvalidArgument: a dtype that does not travel.
        """
        for tensor in tensors:
            wire_dtype(tensor)  # before there is a lease to lose
        with self._lock:
            region = self._region if self._registered else None
            parts, end = ([], 0) if region is None else _lay_out(region, tensors)
            lease = self._lease(batch_id, end) if parts else None
            if region is None or lease is None:
                return [inline_reference(tensor) for tensor in tensors]
            start = FIRST_SLOT + lease.slot * self._slot_bytes
            try:
                region.write(start, lease.generation, parts)
            except Unavailable as error:
                logger.warning("tensors to %s go inline from now on: %s", self._peer, error.message)
                self._close_region()
                return [inline_reference(tensor) for tensor in tensors]
            references = [self._reference(tensor, start + offset, lease.generation) for offset, tensor in parts]
            if len(parts) == len(tensors):
                return references
            by_tensor = {id(tensor): reference for (_, tensor), reference in zip(parts, references, strict=True)}
            return [by_tensor.get(id(tensor)) or inline_reference(tensor) for tensor in tensors]

    def release(self, batch_id: int) -> None:
        """Free what a batch leased: the peer has answered, or never will. Harmless when repeated."""
        with self._lock:
            lease = self._leases.pop(batch_id, None)
            if lease is not None:
                self._free.append(lease.slot)

    def close(self) -> None:
        """Give up the region: the stream is lost, or the service stops. Leases end with it."""
        with self._lock:
            self._close_region()

    def _close_region(self) -> None:
        region, self._region, self._transport = self._region, None, None
        self._registered = False
        self._free.clear()
        self._leases.clear()
        if region is not None:
            region.close()

    def _next_after(self, refusal: str) -> pb.Region | None:
        self.close()
        self._refusals.append(refusal)
        return self._next_offer()

    def _next_offer(self) -> pb.Region | None:
        size_bytes = FIRST_SLOT + self._num_slots * self._slot_bytes
        for transport in self._untried:
            try:
                region = transport.create(
                    size_bytes, PROBE.pack(MARK, self._slot_bytes, secrets.token_bytes(_NONCE_BYTES))
                )
            except Unavailable as error:
                self._refusals.append(f"not through {transport.name}: {error.message}")
                continue
            with self._lock:
                self._region, self._transport, self._region_id = region, transport, self._region_id + 1
                self._free = deque(range(self._num_slots))
                # From the start for each region: words of 32 bits are compared with it.
                self._generation = 0
            return region.describe(self._region_id)
        logger.info("tensors to %s go inline: %s", self._peer, "; ".join(self._refusals))
        return None

    def _lease(self, batch_id: int, end: int) -> _Lease | None:
        if not self._free or end > self._slot_bytes:
            return None
        if batch_id in self._leases:
            raise ValueError(f"batch {batch_id} has not been released")
        self._generation += 1
        lease = self._leases[batch_id] = _Lease(self._free.popleft(), self._generation)
        return lease

    def _reference(self, tensor: Tensor, offset: int, generation: int) -> pb.TensorRef:
        return slice_reference(tensor, region_id=self._region_id, offset=offset, generation=generation)


def _lay_out(region: OwnedRegion, tensors: Sequence[Tensor]) -> tuple[list[Part], int]:
    """Where the tensors that a region takes go in a slot, and where the last of them ends."""
    parts: list[Part] = []
    end = HEADER.size
    for tensor in tensors:
        num_bytes = tensor.nbytes
        if num_bytes and region.takes(tensor):
            begin = aligned(end)
            parts.append((begin, tensor))
            end = begin + num_bytes
    return parts, end

"""Passes the tensors of batches to the peer of a stream, through a region where both can reach one.

Transports are tried in order, each by a region that the peer really reads. A batch leases one slot of the
region for all its tensors, until the peer has answered; when none is free or was read yet, or the batch is too
big, it goes inline. So does a tensor that the region does not take, beside those that it does.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from ..errors import ResourceExhausted, Unavailable
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
    """The sender's end. Any thread may call it.

    For each stream: `open`, then `on_registered` with each answer, `offer_next` where a region was given up, and tell
    the peer of each region that these return; `close`. These three may wait for a device where `may_wait` says so, and
    `close` does not wait for them: what they make then comes to nothing. Until the peer has agreed to a region, and
    where it agrees to none, tensors go inline.
    """

    def __init__(
        self,
        peer: str,
        *,
        slot_bytes: int,
        num_slots: int = 16,
        device: torch.device = CPU,
        transports: Sequence[RegionTransport] | None = None,
        on_given_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Offers nothing yet.

        Args:
            peer: its name, for the log.
            slot_bytes: room for one batch.
            num_slots: batches that may be on their way at once.
            device: where their tensors lie.
            transports: if not that device's.
            on_given_up: called when a region is of no more use, in a thread that packs; `offer_next` is due.
        """
        self._peer = peer
        self._on_given_up = on_given_up
        self._slot_bytes = HEADER.size + aligned(slot_bytes)
        self._num_slots = num_slots
        self._transports = transports_for(device) if transports is None else tuple(transports)
        self._untried: Iterator[RegionTransport] = iter(())
        self._refusals: list[str] = []
        self._offering = Lock()
        """Held while a region is made or confirmed; by one who does not hold the other lock."""
        self._lock = Lock()
        self._stream: object | None = None
        """What is there as long as the stream is."""
        self._region: OwnedRegion | None = None
        self._region_id = 0
        self._transport: RegionTransport | None = None
        self._registered = False
        self._generation = 0
        self._free: deque[int] = deque()
        self._leases: dict[int, _Lease] = {}

    @property
    def may_wait(self) -> bool:
        """Whether agreeing on a region may take long; an event loop leaves it to a thread then."""
        return any(transport.may_wait for transport in self._transports)

    def open(self) -> pb.Region | None:
        """Begin with a new stream: the first region that the peer is to try; None where there is none."""
        with self._offering:
            stream = object()
            with self._lock:
                self._close_region()
                self._stream = stream
            self._untried, self._refusals = iter(self._transports), []
            return self._next_offer(stream)

    def on_registered(self, answer: Registered) -> pb.Region | None:
        """Use the region from now on if the peer can, else offer the next one: None where there is none.

        A peer that can use its region no longer says so in the same way.
        """
        with self._offering:
            with self._lock:
                stream, transport, region, registered = self._stream, self._transport, self._region, self._registered
            if transport is None or region is None or answer.region_id != self._region_id:
                return None
            if answer.transport != transport.number:
                return self._next_after(region, stream, f"not through {transport.name}: {answer.reason}")
            if registered:
                return None
            try:
                region.confirm()
            except Unavailable as error:
                return self._next_after(region, stream, f"not through {transport.name}: {error.message}")
            with self._lock:
                if self._region is not region:
                    return None
                # The peer has it, so it need not be found any more.
                region.unlink()
                self._registered = True
            why = "; ".join([answer.reason, *self._refusals])
            logger.info("tensors to %s go through %s: %s", self._peer, transport.name, why)
            return None

    def offer_next(self) -> pb.Region | None:
        """After a region was given up: the next one that the peer is to try; None where there is none."""
        with self._offering:
            with self._lock:
                stream, has_region = self._stream, self._region is not None
            return None if stream is None or has_region else self._next_offer(stream)

    def pack(self, batch_id: int, tensors: Sequence[Tensor]) -> list[pb.TensorRef]:
        """References to the tensors of a batch, valid until `release(batch_id)`.

        Raises:
            InvalidArgument: a dtype that does not travel.
        """
        for tensor in tensors:
            wire_dtype(tensor)  # before there is a lease to lose
        with self._lock:
            if self._registered and self._region is not None and self._region.fault:
                self._give_up(self._region.fault)
            region = self._region if self._registered else None
            parts, end = ([], 0) if region is None else _lay_out(region, tensors)
            lease = self._lease(batch_id, end) if parts else None
            if region is None or lease is None:
                return [inline_reference(tensor) for tensor in tensors]
            start = self._start_of(lease)
            try:
                region.write(start, lease.generation, parts)
            except ResourceExhausted:
                self._end_lease(batch_id)
                return [inline_reference(tensor) for tensor in tensors]
            except Unavailable as error:
                self._give_up(error.message)
                return [inline_reference(tensor) for tensor in tensors]
            references = [self._reference(tensor, start + offset, lease.generation) for offset, tensor in parts]
            if len(parts) == len(tensors):
                return references
            by_tensor = {id(tensor): reference for (_, tensor), reference in zip(parts, references, strict=True)}
            return [by_tensor.get(id(tensor)) or inline_reference(tensor) for tensor in tensors]

    def release(self, batch_id: int) -> None:
        """Free what a batch leased: the peer has answered, or never will. Harmless when repeated."""
        with self._lock:
            self._end_lease(batch_id)

    def retract(self, references: Iterable[pb.TensorRef]) -> None:
        """Say that a batch of these references is not sent: nobody will read them, and its slot is kept for nobody."""
        with self._lock:
            slices = [reference.slice for reference in references if reference.HasField("slice")]
            generations = {place.generation for place in slices if place.region_id == self._region_id}
            for lease in self._leases.values():
                if self._region is not None and lease.generation in generations:
                    self._region.forget(self._start_of(lease))

    def close(self) -> None:
        """Give up the region: the stream is lost, or the service stops. Leases end with it."""
        with self._lock:
            self._stream = None
            self._close_region()

    def _give_up(self, why: str) -> None:
        """Use the region no more, on a stream that goes on."""
        logger.warning("tensors to %s go inline from now on: %s", self._peer, why)
        if self._transport is not None:
            self._refusals.append(f"not through {self._transport.name}: {why}")
        self._close_region()
        self._on_given_up()

    def _close_region(self) -> None:
        region, self._region, self._transport = self._region, None, None
        self._registered = False
        self._free.clear()
        self._leases.clear()
        if region is not None:
            region.close()

    def _next_after(self, region: OwnedRegion, stream: object | None, refusal: str) -> pb.Region | None:
        with self._lock:
            if self._region is not region:
                return None
            self._close_region()
        self._refusals.append(refusal)
        return self._next_offer(stream)

    def _next_offer(self, stream: object | None) -> pb.Region | None:
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
                if self._stream is not stream:
                    region.close()
                    return None
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

    def _end_lease(self, batch_id: int) -> None:
        lease = self._leases.pop(batch_id, None)
        if lease is not None:
            self._free.append(lease.slot)

    def _start_of(self, lease: _Lease) -> int:
        return FIRST_SLOT + lease.slot * self._slot_bytes

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

"""Reads the tensors that the peer of a stream refers to, inline or in the region it registered.

Everything here comes from a peer and is checked as such. What it returns does not change when the peer
writes to a lease again, so one that does so too early spoils no tensor that was already read.
"""

import hmac
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import InvalidArgument, Unavailable
from .region_transport import ALIGNMENT, FIRST_SLOT, HEADER, MARK, PROBE, PeerRegion, Received, RegionTransport
from .tensors import Layout, layout_of, refuse, tensor_of
from .transports import CPU, transports_for
from .wire import common_pb2 as pb
from .wire.common_pb2 import Registered

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _InUse:
    """A region that was agreed to."""

    region: PeerRegion
    region_id: int
    size_bytes: int
    slot_bytes: int


class TensorReceiver:
    """The receiver's end of one stream, which uses one region.

    Belongs to one thread. Only `register` may go on in another one meanwhile, since it may wait for a device.
    """

    def __init__(
        self, peer: str, transports: Sequence[RegionTransport] | None = None, *, device: torch.device = CPU
    ) -> None:
        """`device`: where tensors are wanted. `transports`: those to agree to, if not all that reach there."""
        offered = transports_for(device) if transports is None else transports
        self._peer = peer
        self._transports = {transport.kind: transport for transport in offered}
        self._in_use: _InUse | None = None
        self._withdrawn: _InUse | None = None

    def may_wait(self, told: pb.Region) -> bool:
        """Whether trying a peer's region may take long; an event loop leaves it to a thread then."""
        transport = self._transports.get(told.WhichOneof("kind") or "")
        return transport is not None and transport.may_wait

    def register(self, told: pb.Region) -> Registered:
        """Try a peer's region with a real read, and say whether it can be used.

        One that is told of later takes the place of one that is in use: the peer has given that up.

        Raises:
            InvalidArgument: no peer of ours would ask for this.
        """
        if self._in_use is not None and told.region_id <= self._in_use.region_id:
            raise InvalidArgument("a stream uses one region at a time")
        kind = told.WhichOneof("kind")
        if kind is None:
            raise InvalidArgument("the region is not valid")
        transport = self._transports.get(kind)
        if transport is None:
            reason = f"regions of kind {kind} are not supported here; offer another, or send tensors inline"
            return Registered(region_id=told.region_id, transport=pb.TRANSPORT_INLINE, reason=reason)
        slot_bytes = _slot_bytes(told)
        self.close()
        try:
            region = _attach(transport, told)
        except Unavailable as error:
            return Registered(region_id=told.region_id, transport=pb.TRANSPORT_INLINE, reason=error.message)
        self._in_use = _InUse(region, told.region_id, told.size_bytes, slot_bytes)
        reason = f"{told.size_bytes} bytes were opened and the probe was read"
        logger.info("tensors from %s come through %s: %s", self._peer, transport.name, reason)
        return Registered(region_id=told.region_id, transport=transport.number, reason=reason)

    def read(self, references: Sequence[pb.TensorRef]) -> Received:
        """The tensors of one batch, all at once, in order.

        Those of a device's region stay there, on the way: see `Received.join`. All others lie in the host's memory.

        Raises:
            InvalidArgument: a reference is malformed or points outside, their lease is over, or the region is of no
                more use, see `withdrawal`.
        """
        layouts = [layout_of(reference) for reference in references]
        places = [reference.slice for reference in references if reference.HasField("slice")]
        if len(places) == len(references):
            return self._read_lease(places, layouts)
        if not places:
            pairs = zip(layouts, references, strict=True)
            return Received([tensor_of(layout, bytearray(reference.inline)) for layout, reference in pairs])
        return self._read_mixed(references, places, layouts)

    @property
    def fault(self) -> str:
        """Why the peer's region is of no more use, so that what it refers to there cannot be read; else empty."""
        return "" if self._in_use is None else self._in_use.region.fault

    def withdrawal(self) -> Registered | None:
        """What to tell the peer, once, when its region is of no more use; None while it is."""
        used = self._in_use
        if used is None or not used.region.fault or self._withdrawn is used:
            return None
        self._withdrawn = used
        return Registered(
            region_id=used.region_id, transport=pb.TRANSPORT_INLINE, reason=f"no longer: {used.region.fault}"
        )

    def close(self) -> None:
        """Let go of the region. Harmless when repeated."""
        used, self._in_use = self._in_use, None
        if used is not None:
            used.region.close()

    def _read_mixed(
        self, references: Sequence[pb.TensorRef], places: Sequence[pb.RegionSlice], layouts: Sequence[Layout]
    ) -> Received:
        """Some from the region, the others inline."""
        there = [layout for layout, told in zip(layouts, references, strict=True) if told.HasField("slice")]
        found = self._read_lease(places, there)
        from_region = iter(found.tensors)
        tensors = [
            next(from_region) if told.HasField("slice") else tensor_of(layout, bytearray(told.inline))
            for layout, told in zip(layouts, references, strict=True)
        ]
        return Received(tensors, found.mark, found.marked)

    def _read_lease(self, places: Sequence[pb.RegionSlice], layouts: Sequence[Layout]) -> Received:
        if not places:
            return Received([])
        used = self._in_use
        region_id, generation = places[0].region_id, places[0].generation
        if used is None or region_id != used.region_id:
            refuse("unknown region")
        start = _slot_of(places[0], used)
        for place in places[1:]:
            if (place.region_id, place.generation, _slot_of(place, used)) != (region_id, generation, start):
                refuse("more than one lease")
        parts = [(place.offset_bytes - start, layout) for place, layout in zip(places, layouts, strict=True)]
        return used.region.read(start, generation, parts)


def _slot_of(place: pb.RegionSlice, used: _InUse) -> int:
    """Where the slot begins that a slice lies in, whole."""
    begin = place.offset_bytes
    end = begin + place.size_bytes
    slot = (begin - FIRST_SLOT) // used.slot_bytes
    start = FIRST_SLOT + slot * used.slot_bytes
    within_slot = start + HEADER.size <= begin < end <= start + used.slot_bytes
    if slot < 0 or not within_slot or end > used.size_bytes or begin % ALIGNMENT:
        refuse("outside of a slot, or not aligned")
    return start


def _slot_bytes(told: pb.Region) -> int:
    """Bytes per slot as the probe tells them."""
    if len(told.probe) == PROBE.size:
        mark, slot_bytes, _ = PROBE.unpack(told.probe)
        fits = HEADER.size < slot_bytes <= told.size_bytes - FIRST_SLOT and slot_bytes % ALIGNMENT == 0
        if mark == MARK and fits:
            return int(slot_bytes)
    raise InvalidArgument("the region is not valid")


def _attach(transport: RegionTransport, told: pb.Region) -> PeerRegion:
    region = transport.attach(told)
    if not hmac.compare_digest(region.read_probe(), told.probe):
        region.close()
        raise Unavailable(f"the {transport.name} has other contents than the peer says")
    return region

"""Reads the tensors that the peer of a stream refers to, inline or in the region it registered.

Everything here comes from a peer and is checked as such. What it returns does not change when the peer
writes to a lease again, so one that does so too early spoils no tensor that was already read.
"""

import hmac
import logging
from collections.abc import Sequence

from torch import Tensor

from ..errors import InvalidArgument, Unavailable
from .region_transport import GENERATION, MARK, PROBE, PeerRegion, RegionTransport
from .tensors import layout_of, refuse, tensor_of
from .transports import TRANSPORTS
from .wire import common_pb2 as pb
from .wire.common_pb2 import Registered

logger = logging.getLogger(__name__)


class TensorReceiver:
    """The receiver's end of one stream, which uses one region. Belongs to one thread."""

    def __init__(self, peer: str, transports: Sequence[RegionTransport] = TRANSPORTS) -> None:
        self._peer = peer
        self._transports = {transport.kind: transport for transport in transports}
        self._region: PeerRegion | None = None
        self._region_id = 0
        self._slot_bytes = 0
        self._size_bytes = 0

    def register(self, told: pb.Region) -> Registered:
        """Try a peer's region with a real read, and say whether it can be used.

        Raises:
            InvalidArgument: no peer of ours would ask for this.
        """
        if self._region is not None:
            raise InvalidArgument("a stream uses one region")
        kind = told.WhichOneof("kind")
        if kind is None:
            raise InvalidArgument("the region is not valid")
        transport = self._transports.get(kind)
        if transport is None:
            reason = f"regions of kind {kind} are not supported here; offer another, or send tensors inline"
            return Registered(region_id=told.region_id, transport=pb.TRANSPORT_INLINE, reason=reason)
        slot_bytes = _slot_bytes(told)
        try:
            self._region = _attach(transport, told)
        except Unavailable as error:
            return Registered(region_id=told.region_id, transport=pb.TRANSPORT_INLINE, reason=error.message)
        self._region_id, self._size_bytes, self._slot_bytes = told.region_id, told.size_bytes, slot_bytes
        reason = f"{told.size_bytes} bytes were opened and the probe was read"
        logger.info("tensors from %s come through %s: %s", self._peer, transport.name, reason)
        return Registered(region_id=told.region_id, transport=transport.number, reason=reason)

    def read(self, reference: pb.TensorRef) -> Tensor:
        """The tensor that a reference tells of, on the CPU.

        Raises:
            InvalidArgument: the reference is malformed, points outside, or its lease is over.
        """
        layout = layout_of(reference)
        if reference.HasField("inline"):
            return tensor_of(layout, bytearray(reference.inline))
        place = reference.slice
        if self._region is None or place.region_id != self._region_id:
            refuse("unknown region")
        return self._region.read(self._slot_of(place), place.generation, place.offset_bytes, layout)

    def close(self) -> None:
        """Let go of the region. Harmless when repeated."""
        if self._region is not None:
            self._region.close()
            self._region = None

    def _slot_of(self, place: pb.RegionSlice) -> int:
        """Where the slot begins that a slice lies in, whole."""
        begin, end = place.offset_bytes, place.offset_bytes + place.size_bytes
        slot = (begin - PROBE.size) // self._slot_bytes
        start = PROBE.size + slot * self._slot_bytes
        within_slot = start + GENERATION.size <= begin < end <= start + self._slot_bytes
        if slot < 0 or not within_slot or end > self._size_bytes:
            refuse("outside of a slot")
        return start


def _slot_bytes(told: pb.Region) -> int:
    """Bytes per slot as the probe tells them."""
    if len(told.probe) == PROBE.size:
        mark, slot_bytes, _ = PROBE.unpack(told.probe)
        if mark == MARK and GENERATION.size < slot_bytes <= told.size_bytes - PROBE.size:
            return int(slot_bytes)
    raise InvalidArgument("the region is not valid")


def _attach(transport: RegionTransport, told: pb.Region) -> PeerRegion:
    region = transport.attach(told)
    if not hmac.compare_digest(region.read_probe(), told.probe):
        region.close()
        raise Unavailable(f"the {transport.name} has other contents than the peer says")
    return region

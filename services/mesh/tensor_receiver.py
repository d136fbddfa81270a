"""Reads the tensors that the peer of a stream refers to, inline or in the region it registered.

Everything here comes from a peer and is checked as such. What it returns is a copy, so a peer that
writes to a lease too early spoils no tensor that was already read.
"""

import hmac
import logging

from torch import Tensor

from ..errors import InvalidArgument
from .regions import SharedRegion, boot_id
from .tensor_sender import GENERATION, MARK, PROBE
from .tensors import layout_of, refuse, tensor_of
from .wire import common_pb2 as pb
from .wire.router_pb2 import Registered

logger = logging.getLogger(__name__)


class TensorReceiver:
    """The receiver's end of one stream; a region is registered once a stream. Belongs to one thread."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._region: SharedRegion | None = None
        self._region_id = 0
        self._slot_bytes = 0

    def register(self, region: pb.Region) -> Registered:
        """Try a peer's region with a real read, and say what can be used.

        Raises:
            InvalidArgument: no peer of ours would ask for this.
        """
        if self._region is not None:
            raise InvalidArgument("a stream registers one region")
        transport: pb.Transport.ValueType = pb.TRANSPORT_INLINE
        kind = region.WhichOneof("kind")
        if kind == "shared_memory":
            self._region, reason = _attach(region)
            if self._region is not None:
                transport = pb.TRANSPORT_SHARED_MEMORY
                self._region_id, (_, self._slot_bytes, _) = region.region_id, PROBE.unpack(region.probe)
        elif kind == "cuda_ipc":
            reason = "CUDA IPC is not supported here yet; register shared memory, or send tensors inline"
        else:
            raise InvalidArgument("the region is not valid")
        logger.info("tensors from %s come by %s: %s", self._peer, pb.Transport.Name(transport), reason)
        return Registered(region_id=region.region_id, transport=transport, reason=reason)

    def read(self, reference: pb.TensorRef) -> Tensor:
        """A copy of the tensor that a reference tells of, on the CPU.

        Raises:
            InvalidArgument: the reference is malformed, points outside, or its lease is over.
        """
        layout = layout_of(reference)
        if reference.HasField("inline"):
            return tensor_of(layout, bytearray(reference.inline))
        return tensor_of(layout, self._read(reference.slice))

    def close(self) -> None:
        """Let go of the region. Harmless when repeated."""
        if self._region is not None:
            self._region.close()
            self._region = None

    def _read(self, place: pb.RegionSlice) -> bytearray:
        if self._region is None or place.region_id != self._region_id:
            refuse("unknown region")
        begin, end = place.offset_bytes, place.offset_bytes + place.size_bytes
        slot = (begin - PROBE.size) // self._slot_bytes
        slot_start = PROBE.size + slot * self._slot_bytes
        within_slot = slot_start + GENERATION.size <= begin < end <= slot_start + self._slot_bytes
        if slot < 0 or not within_slot or end > self._region.size_bytes:
            refuse("outside of a slot")
        data = self._region.read(begin, place.size_bytes)
        # After the data, on purpose: see the order in which the sender writes.
        if GENERATION.unpack(self._region.read(slot_start, GENERATION.size)) != (place.generation,):
            refuse("the lease is over")
        return data


def _attach(region: pb.Region) -> tuple[SharedRegion | None, str]:
    """The region if it is within reach; either way, why."""
    told = region.shared_memory
    if len(region.probe) != PROBE.size:
        raise InvalidArgument("the region is not valid")
    mark, slot_bytes, _ = PROBE.unpack(region.probe)
    if mark != MARK or not GENERATION.size < slot_bytes <= region.size_bytes - PROBE.size:
        raise InvalidArgument("the region is not valid")
    if told.boot_id != boot_id():
        return None, "the peer is on another host"
    try:
        attached = SharedRegion.attach(told.name, region.size_bytes)
    except OSError as error:
        return None, f"the peer's shared memory is out of reach: {error.strerror}"
    if not hmac.compare_digest(bytes(attached.read(0, PROBE.size)), region.probe):
        attached.close()
        return None, "the peer's shared memory has other contents than the peer says"
    return attached, f"one host, {region.size_bytes} bytes were opened and the probe was read"

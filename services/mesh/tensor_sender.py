"""Passes the tensors of batches to the peer of a stream, through a region where both can reach one.

The region is cut into equal slots. A batch leases one for all its tensors, until the peer has answered;
when none is free, or the batch is too big, it goes inline. A slot begins with the generation of its
lease, written before the tensors are: whoever reads the tensors and then finds the generation he was
told has read the right lease, whole.
"""

import logging
import secrets
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from torch import Tensor

from .regions import MAX_REGION_BYTES, SharedRegion, boot_id
from .tensors import bytes_of, inline_reference, slice_reference, total_bytes, wire_dtype
from .wire import common_pb2 as pb
from .wire.router_pb2 import Registered

logger = logging.getLogger(__name__)

PROBE = struct.Struct("<8sQ48s")
"""How a region begins: our mark, bytes per slot, and a nonce."""
MARK = b"allroads"
GENERATION = struct.Struct("<Q")
"""How a slot begins."""


@dataclass(frozen=True, slots=True)
class _Lease:
    slot: int
    generation: int


class TensorSender:
    """The sender's end. `pack` may be called from another thread than the rest.

    For each stream: `open`, tell the peer what it returns, `on_registered` with the answer, `close`.
    Before the answer, and whenever no region can be used, tensors go inline.
    """

    def __init__(self, peer: str, *, slot_bytes: int, num_slots: int = 16) -> None:
        self._peer = peer
        self._slot_bytes = slot_bytes + GENERATION.size
        self._num_slots = num_slots
        self._lock = Lock()
        self._region: SharedRegion | None = None
        self._region_id = 0
        self._registered = False
        self._generation = 0
        self._free: deque[int] = deque()
        self._leases: dict[int, _Lease] = {}

    def open(self) -> pb.Region | None:
        """Make a region for a new stream; None where there is no shared memory, or too little."""
        self.close()
        size_bytes = PROBE.size + self._num_slots * self._slot_bytes
        host = boot_id()
        try:
            if not host or size_bytes > MAX_REGION_BYTES:
                raise OSError("no boot id" if not host else f"{size_bytes} bytes are more than a region may have")
            region = SharedRegion.create(size_bytes)
            probe = PROBE.pack(MARK, self._slot_bytes, secrets.token_bytes(48))
            region.write(0, [probe])
        except OSError as error:
            logger.info("tensors to %s go inline: no shared memory here: %s", self._peer, error)
            return None
        with self._lock:
            self._region, self._region_id = region, self._region_id + 1
            self._free = deque(range(self._num_slots))
        return pb.Region(
            region_id=self._region_id,
            size_bytes=size_bytes,
            shared_memory=pb.SharedMemoryRegion(name=region.name, boot_id=host),
            probe=probe,
        )

    def on_registered(self, answer: Registered) -> None:
        """Take the peer's answer: use the region from now on, or give it up."""
        if self._region is None or answer.region_id != self._region_id:
            return
        if answer.transport != pb.TRANSPORT_SHARED_MEMORY:
            logger.info("tensors to %s go inline: %s", self._peer, answer.reason)
            self.close()
            return
        logger.info("tensors to %s go through shared memory: %s", self._peer, answer.reason)
        with self._lock:
            # The peer has it open, so the name has served its turn.
            self._region.unlink()
            self._registered = True

    def pack(self, batch_id: int, tensors: Sequence[Tensor]) -> list[pb.TensorRef]:
        """References to the tensors of a batch, valid until `release(batch_id)`.

        Raises:
            InvalidArgument: a dtype that does not travel.
        """
        for tensor in tensors:
            wire_dtype(tensor)  # before there is a lease to lose
        with self._lock:
            lease = self._lease(batch_id, total_bytes(tensors))
            if lease is None or self._region is None:
                return [inline_reference(tensor) for tensor in tensors]
            start = PROBE.size + lease.slot * self._slot_bytes
            buffers = [bytes_of(tensor) for tensor in tensors]
            self._region.write(start, [GENERATION.pack(lease.generation), *buffers])
            references = []
            offset = start + GENERATION.size
            for tensor in tensors:
                references.append(self._reference(tensor, offset, lease.generation))
                offset += tensor.nbytes
            return references

    def release(self, batch_id: int) -> None:
        """Free what a batch leased: the peer has answered, or never will. Harmless when repeated."""
        with self._lock:
            lease = self._leases.pop(batch_id, None)
            if lease is not None:
                self._free.append(lease.slot)

    def close(self) -> None:
        """Give up the region: the stream is lost, or the service stops. Leases end with it."""
        with self._lock:
            region, self._region = self._region, None
            self._registered = False
            self._free.clear()
            self._leases.clear()
            if region is not None:
                region.close()

    def _lease(self, batch_id: int, num_bytes: int) -> _Lease | None:
        fits = 0 < num_bytes <= self._slot_bytes - GENERATION.size
        if not self._registered or not self._free or not fits:
            return None
        if batch_id in self._leases:
            raise ValueError(f"batch {batch_id} has not been released")
        self._generation += 1
        lease = self._leases[batch_id] = _Lease(self._free.popleft(), self._generation)
        return lease

    def _reference(self, tensor: Tensor, offset: int, generation: int) -> pb.TensorRef:
        if tensor.nbytes == 0:
            return inline_reference(tensor)
        return slice_reference(tensor, region_id=self._region_id, offset=offset, generation=generation)

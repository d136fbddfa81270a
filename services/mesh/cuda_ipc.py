"""Regions for peers on the same GPU: CUDA IPC, tried with a real round trip.

A handle says nothing about where it is good: whether the peer sees the same GPU is told by the GPU's UUID, not by
its number, and whether a handle can be opened here only by opening it. Whoever opens a handle can write, too: a
region is for peers that trust each other. Its words lie in /dev/shm (`region_words.py`), so both ends must have the
same one.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from uuid import UUID

from ..cuda.device_memory import HANDLE_BYTES, IpcDevice
from ..errors import InvalidArgument, Unavailable
from .cuda_peer_region import PeerCudaRegion
from .cuda_regions import GREETING, OWN, OwnedCudaRegion
from .lease_watch import LeaseWatch
from .region_transport import FIRST_SLOT, PROBE
from .region_words import RegionWords
from .regions import MAX_REGION_BYTES
from .watched_region import borrowed_lane
from .wire import common_pb2 as pb

WAIT_LIMIT_S = 5.0
"""How long a stream waits for the peer's, and a writer for a slot: far longer than one that lives needs. Where one is
gone, so is the gRPC stream, whose end ends all waits at once."""


class CudaIpcTransport:
    """Both ends on one GPU, in two processes. Made once in each: it knows what it has exported and opened."""

    name = "CUDA IPC"
    kind = "cuda_ipc"
    number = pb.TRANSPORT_CUDA_IPC
    may_wait = True

    def __init__(self, find_device: Callable[[], IpcDevice], wait_limit_s: float = WAIT_LIMIT_S) -> None:
        """`find_device`: the one to share memory of; raises Unavailable where there is none."""
        self._find_device = find_device
        self._watch = LeaseWatch(wait_limit_s)
        self._exported: set[bytes] = set()
        self._opened: set[bytes] = set()

    def create(self, size_bytes: int, probe: bytes) -> OwnedCudaRegion:
        """See `RegionTransport`."""
        if size_bytes > MAX_REGION_BYTES:
            raise Unavailable(f"{size_bytes} bytes are more than a region may have")
        device = self._find_device()
        with ExitStack() as undo:
            words = RegionWords.create(device, size_bytes, _slot_bytes(probe))
            undo.callback(words.close)
            memory = device.allocate(size_bytes)
            undo.callback(memory.close)
            with borrowed_lane(device) as lane:
                for offset in range(0, PROBE.size, 4):
                    lane.put_word(memory, offset, int.from_bytes(probe[offset : offset + 4], "little"))
                lane.put_word(words.on_device, words.ready(OWN), GREETING)
                lane.fetch(memory, 0, FIRST_SLOT)  # once it returns, all is there
            undo.pop_all()
        handle = memory.handle
        self._exported.add(handle)
        return OwnedCudaRegion(device, memory, words, self._watch, partial(self._exported.discard, handle), probe)

    def attach(self, told: pb.Region) -> PeerCudaRegion:
        """See `RegionTransport`."""
        handle = told.cuda_ipc.handle
        fits = len(handle) == HANDLE_BYTES and FIRST_SLOT < told.size_bytes <= MAX_REGION_BYTES
        if not fits or not _is_uuid(told.cuda_ipc.device_uuid) or handle in self._opened:
            raise InvalidArgument("the region is not valid")
        if handle in self._exported:
            raise Unavailable("the peer is in this process, where its handle cannot be opened")
        device = self._find_device()
        if told.cuda_ipc.device_uuid != device.uuid:
            raise Unavailable("the peer's tensors are on another GPU")
        with ExitStack() as undo:
            words = RegionWords.attach(told.cuda_ipc.words, device, told.size_bytes, _slot_bytes(told.probe))
            undo.callback(words.close)
            memory = device.open(handle, told.size_bytes)
            undo.callback(memory.close)
            region = PeerCudaRegion(device, memory, words, self._watch, partial(self._opened.discard, handle))
            undo.pop_all()
        self._opened.add(handle)
        try:
            region.greet()
        except Unavailable:
            region.close()
            raise
        return region


def _slot_bytes(probe: bytes) -> int:
    return int(PROBE.unpack(probe)[1])


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False

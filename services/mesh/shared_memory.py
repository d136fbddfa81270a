"""Regions for peers on the same host: POSIX shared memory."""

from collections.abc import Sequence

from torch import Tensor

from ..errors import Unavailable
from .region_transport import ALIGNMENT, FIRST_SLOT, GENERATION, HEADER, PROBE, Part, Received
from .regions import MAX_REGION_BYTES, SharedRegion, boot_id
from .tensors import Layout, bytes_of, refuse, tensor_of
from .wire import common_pb2 as pb

_PADDING = bytes(ALIGNMENT)


class SharedMemoryRegion:
    """A region in shared memory, at either end."""

    fault = ""

    def __init__(self, memory: SharedRegion) -> None:
        self._memory = memory

    def describe(self, region_id: int) -> pb.Region:
        """See `OwnedRegion`."""
        return pb.Region(
            region_id=region_id,
            size_bytes=self._memory.size_bytes,
            shared_memory=pb.SharedMemoryRegion(name=self._memory.name, boot_id=boot_id()),
            probe=self.read_probe(),
        )

    def read_probe(self) -> bytes:
        """See `PeerRegion`."""
        return bytes(self._memory.read(0, PROBE.size))

    def confirm(self) -> None:
        """See `OwnedRegion`. Who does not read the probe here has nothing to compare what it was told with."""

    def takes(self, tensor: Tensor) -> bool:
        """See `OwnedRegion`. What lies on a device is copied to the host."""
        return True

    def write(self, start: int, generation: int, parts: Sequence[Part]) -> None:
        """See `OwnedRegion`. The generation is written before the tensors are."""
        buffers: list[object] = [HEADER.pack(generation, 0, 0)]
        end = HEADER.size
        for offset, tensor in parts:
            if offset != end:
                buffers.append(_PADDING[: offset - end])
            buffers.append(bytes_of(tensor))
            end = offset + tensor.nbytes
        self._memory.write(start, buffers)

    def read(self, start: int, generation: int, parts: Sequence[tuple[int, Layout]]) -> Received:
        """See `PeerRegion`. The generation is read after the tensors were: if it is right, so are they."""
        data = [self._memory.read(start + offset, layout.num_bytes) for offset, layout in parts]
        if GENERATION.unpack(self._memory.read(start, GENERATION.size)) != (generation,):
            refuse("the lease is over")
        return Received([tensor_of(layout, found) for (_, layout), found in zip(parts, data, strict=True)])

    def forget(self, start: int) -> None:
        """See `OwnedRegion`. The next lease waits for nobody."""

    def unlink(self) -> None:
        """See `OwnedRegion`."""
        self._memory.unlink()

    def close(self) -> None:
        """See `OwnedRegion`."""
        self._memory.close()


class SharedMemoryTransport:
    """Both ends on one host, with one /dev/shm."""

    name = "shared memory"
    kind = "shared_memory"
    number = pb.TRANSPORT_SHARED_MEMORY
    may_wait = False

    def create(self, size_bytes: int, probe: bytes) -> SharedMemoryRegion:
        """See `RegionTransport`."""
        if not boot_id():
            raise Unavailable("this host has no boot id")
        if size_bytes > MAX_REGION_BYTES:
            raise Unavailable(f"{size_bytes} bytes are more than a region may have")
        try:
            memory = SharedRegion.create(size_bytes)
        except OSError as error:
            raise Unavailable(f"there is none here, or too little: {error}") from error
        memory.write(0, [probe, bytes(FIRST_SLOT - PROBE.size)])
        return SharedMemoryRegion(memory)

    def attach(self, told: pb.Region) -> SharedMemoryRegion:
        """See `RegionTransport`."""
        if told.shared_memory.boot_id != boot_id():
            raise Unavailable("the peer is on another host")
        try:
            return SharedMemoryRegion(SharedRegion.attach(told.shared_memory.name, told.size_bytes))
        except OSError as error:
            raise Unavailable(f"the peer's is out of reach: {error.strerror}") from error

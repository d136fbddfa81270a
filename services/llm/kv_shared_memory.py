"""KV pools of processes on one host's processors: the lender's in POSIX shared memory, read by position.

The first page is the probe's, the blocks follow. All of it is reserved at start: a system that has promised more
shared memory than there is would end whoever writes to it, much later.
"""

import math
import secrets
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..engine.kv_blocks import KvBlocks
from ..errors import StartupError, Unavailable
from ..mesh.region_transport import MARK, PROBE
from ..mesh.regions import SharedRegion, boot_id, remove_stale_regions
from ..mesh.tensors import refuse
from ..mesh.wire import common_pb2 as pb

PAGE_BYTES = 4096
"""Before the blocks; the probe lies there."""
_MAX_BYTES = 1 << 44
_BYTES_PER_TURN = 8 * 1024 * 1024
"""Copied in a few milliseconds by one core."""
_MOST_BUFFERS = 1024
"""Of one read."""


def new_probe() -> bytes:
    """How a KV pool begins: our mark, and a nonce that nobody else has."""
    return PROBE.pack(MARK, 0, secrets.token_bytes(48))


class SharedKvMemory:
    """The lender's end. See `OwnKvMemory`."""

    def __init__(self) -> None:
        self._region: SharedRegion | None = None
        self._probe = new_probe()

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `OwnKvMemory`."""
        num_bytes = math.prod(shape) * dtype.itemsize
        # What a lender left behind that was killed may be as large.
        remove_stale_regions()
        try:
            region = SharedRegion.create(PAGE_BYTES + num_bytes)
        except OSError as error:
            raise StartupError(
                f"a KV pool of {num_bytes} bytes that others may copy from needs as much shared memory: "
                f"{error.strerror}; enlarge /dev/shm (shm_size of a container), lower num_kv_tokens, "
                "or set lends_kv to false",
                field="lends_kv",
            ) from error
        region.write(0, [self._probe])
        self._region = region
        # The tensor keeps the map, and the map the memory.
        blocks = torch.frombuffer(region.map(), dtype=torch.uint8, offset=PAGE_BYTES)
        return blocks.view(dtype).view(shape)

    def describe(self) -> pb.Region:
        """See `OwnKvMemory`."""
        region = self._region
        if region is None:
            raise ValueError("there is no KV pool")
        place = pb.SharedMemoryRegion(name=region.name, boot_id=boot_id())
        return pb.Region(size_bytes=region.size_bytes, shared_memory=place, probe=self._probe)

    def settle(self) -> None:
        """See `OwnKvMemory`: a processor has written when it goes on."""

    def close(self) -> None:
        """See `OwnKvMemory`."""
        if self._region is not None:
            self._region.close()
            self._region = None


class SharedPeerPool:
    """A lender's pool, at the borrower. See `PeerPool`."""

    def __init__(self, told: pb.Region, own: KvBlocks, num_blocks: int) -> None:
        """`told`: of a size that fits so many blocks; all else of it is untrusted.

        Raises:
            InvalidArgument: no lender of ours would tell this.
            Unavailable: the pool is out of reach; says why.
        """
        if told.shared_memory.boot_id != boot_id():
            raise Unavailable("it is on another host")
        try:
            self._region = SharedRegion.attach(told.shared_memory.name, told.size_bytes, max_bytes=_MAX_BYTES)
        except OSError as error:
            raise Unavailable(f"its shared memory is out of reach: {error.strerror}") from error
        if bytes(self._region.read(0, PROBE.size)) != told.probe:
            self._region.close()
            refuse("the probe is not what was told")
        memory, dim = own.memory, own.dim
        self._own = memory.view(torch.uint8).numpy().reshape(math.prod(memory.shape[:dim]), own.num_blocks, -1)
        self._num_blocks = num_blocks
        self.blocks_per_turn = max(1, _BYTES_PER_TURN // own.block_bytes)

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """See `PeerPool`: complete when it returns."""
        piece_bytes = self._own.shape[2]
        for plane, pieces in enumerate(self._own):
            for begin, end in _runs(source):
                offset = PAGE_BYTES + (plane * self._num_blocks + source[begin]) * piece_bytes
                self._region.read_into(offset, [memoryview(pieces[block]) for block in target[begin:end]])

    def is_settled(self) -> bool:
        """See `PeerPool`."""
        return True

    def close(self) -> None:
        """See `PeerPool`."""
        self._region.close()


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where runs of consecutive blocks begin and end, none longer than one read takes."""
    begin = 0
    for index, (block, following) in enumerate(pairwise(blocks), 1):
        if following != block + 1 or index - begin == _MOST_BUFFERS:
            yield begin, index
            begin = index
    if blocks:
        yield begin, len(blocks)

"""Regions in memory of a GPU that two processes share: tensors never leave the device.

Writer and reader queue the same protocol on their streams, and no host waits. The writer marks the slot as in the
making (generation 0), copies, tells the generation and then that it is ready; the reader waits for that, copies, has
the device compare the generation with the one it was told of, and acknowledges. Where they differ its copies are NaN,
which no rule takes for a score or a logit: so slots carry floating-point numbers only.

A writer's stream waits for nothing, as it is a model's: whether a slot's former lease was read the writer's host sees
before it queues the next. A reader has a stream of its own, whose waits the watch ends; the region is of no more use
then.
"""

from collections.abc import Callable, Sequence
from time import monotonic

from torch import Tensor

from ..cuda.device_memory import DeviceMemory, IpcDevice, Lane
from ..errors import ResourceExhausted, Unavailable
from .lease_watch import LeaseWatch
from .region_transport import PROBE, Part
from .region_words import WORD, RegionWords
from .watched_region import WatchedRegion
from .wire import common_pb2 as pb

OWN = PROBE.size
"""Where the region's own header begins, by whose words it is greeted."""
GREETING = 1
"""The region's own ready word."""
GRACE_S = 10.0
"""How long a region outlives its stream at the owner's end: memory must not be freed while the peer has it open."""


class OwnedCudaRegion(WatchedRegion):
    """A region at its owner's end."""

    def __init__(
        self,
        device: IpcDevice,
        memory: DeviceMemory,
        words: RegionWords,
        watch: LeaseWatch,
        on_closed: Callable[[], None],
        probe: bytes,
    ) -> None:
        super().__init__(device, memory, words, watch, on_closed)
        self._probe = probe
        self._leases: dict[int, int] = {}
        self._unread: dict[int, float] = {}
        """By slot: since when its former lease has been wanted back."""

    def describe(self, region_id: int) -> pb.Region:
        """See `OwnedRegion`."""
        told = pb.CudaIpcRegion(handle=self._memory.handle, device_uuid=self._device.uuid, words=self._words.describe())
        size_bytes = self._memory.size_bytes
        return pb.Region(region_id=region_id, size_bytes=size_bytes, cuda_ipc=told, probe=self._probe)

    def confirm(self) -> None:
        """See `OwnedRegion`. The peer's device has written what it read of the probe."""
        place = self._words.acknowledge(OWN)
        with self._lock:
            if self._is_let_go or self._words.load(place) != probe_answer(self._probe):
                raise Unavailable("the peer says that it opened the region, and has left no trace in it")

    def takes(self, tensor: Tensor) -> bool:
        """See `OwnedRegion`: floating-point tensors of the device; none once the region is of no more use."""
        return not self.fault and tensor.is_floating_point() and self._device.holds(tensor)

    def write(self, start: int, generation: int, parts: Sequence[Part]) -> None:
        """See `OwnedRegion`. Queued on the calling thread's stream."""
        self._require_use()
        self._require_read(start)
        lane = self._device.current_lane()
        try:
            self._queue_write(lane, start, generation, parts)
        except Unavailable as error:
            self._break(lane, error)
            raise

    def _require_read(self, start: int) -> None:
        former = self._leases.get(start)
        if former is None or self._words.has_come(self._words.acknowledge(start), former & WORD):
            self._unread.pop(start, None)
            return
        now = monotonic()
        if now - self._unread.setdefault(start, now) < self._watch.limit_s:
            raise ResourceExhausted("the slot's former lease was not read yet")
        self._fail("acknowledge")
        raise Unavailable(self.fault)

    def _queue_write(self, lane: Lane, start: int, generation: int, parts: Sequence[Part]) -> None:
        memory = self._memory
        self._leases[start] = generation
        _put_generation(lane, memory, start, 0)
        for offset, tensor in parts:
            lane.copy_in(memory, start + offset, tensor)
        _put_generation(lane, memory, start, generation)
        lane.put_word(self._words.on_device, self._words.ready(start), generation & WORD)
        self._last = lane.mark()

    def forget(self, start: int) -> None:
        """See `OwnedRegion`. Nobody will acknowledge the lease, so the slot is not kept for that."""
        self._leases.pop(start, None)

    def unlink(self) -> None:
        """See `OwnedRegion`. A handle cannot be taken back, but a transport opens none twice; the words' name can."""
        self._words.unlink()

    def close(self) -> None:
        """See `OwnedRegion`. The memory is freed a while later: the peer may have it open still."""
        self._leave(after_s=GRACE_S)


def probe_answer(probe: bytes) -> int:
    """The acknowledge word of who has read a probe: its last four bytes; never 0, which is there from the start."""
    return int.from_bytes(probe[-4:], "little") | 1


def _put_generation(lane: Lane, memory: DeviceMemory, start: int, generation: int) -> None:
    """In two words, in such an order that what a reader finds between them is no generation it was told of."""
    low, high = (start, generation & WORD), (start + 4, generation >> 32)
    for offset, value in (high, low) if generation else (low, high):
        lane.put_word(memory, offset, value)

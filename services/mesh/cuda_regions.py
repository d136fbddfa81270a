"""Regions in memory of a GPU that two processes share: tensors never leave the device.

Writer and reader queue the same protocol on their streams, and no host waits. The writer waits until the slot's former
lease was acknowledged, marks the slot as in the making (generation 0), copies, tells the generation and then that it
is ready; the reader waits for that, copies, has the device compare the generation with the one it was told of, and
acknowledges. Where they differ its copies are NaN, which no rule takes for a score or a logit: so slots carry
floating-point numbers only. A wait that nobody ends is ended by the watch, and the region is of no more use then.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..cuda.device_memory import DeviceMemory, IpcDevice, Lane
from ..errors import Unavailable
from .lease_watch import LeaseWatch
from .region_transport import ACKNOWLEDGE, FIRST_SLOT, HEADER, PROBE, READY, Part, Received
from .tensors import Layout, refuse
from .watched_region import WatchedRegion, borrowed_lane
from .wire import common_pb2 as pb

GREETING = 1
"""The ready word of the region's own header."""
GRACE_S = 10.0
"""How long a region outlives its stream at the owner's end: memory must not be freed while the peer has it open."""
_WORD = 0xFFFFFFFF
_MAX_GENERATION = (1 << 63) - 1


class OwnedCudaRegion(WatchedRegion):
    """A region at its owner's end."""

    def __init__(
        self, device: IpcDevice, memory: DeviceMemory, watch: LeaseWatch, on_closed: Callable[[], None], probe: bytes
    ) -> None:
        super().__init__(device, memory, watch, on_closed, "acknowledge")
        self._probe = probe
        self._leases: dict[int, int] = {}

    def describe(self, region_id: int) -> pb.Region:
        """See `OwnedRegion`."""
        told = pb.CudaIpcRegion(handle=self._memory.handle, device_uuid=self._device.uuid)
        size_bytes = self._memory.size_bytes
        return pb.Region(region_id=region_id, size_bytes=size_bytes, cuda_ipc=told, probe=self._probe)

    def confirm(self) -> None:
        """See `OwnedRegion`. The peer's device has written what it read of the probe."""
        with borrowed_lane(self._device) as lane:
            found = lane.fetch(self._memory, PROBE.size + ACKNOWLEDGE, 4)
        if found != probe_answer(self._probe).to_bytes(4, "little"):
            raise Unavailable("the peer says that it opened the region, and has left no trace in it")

    def takes(self, tensor: Tensor) -> bool:
        """See `OwnedRegion`: floating-point tensors of the device; none once the region is of no more use."""
        return not self.fault and tensor.is_floating_point() and self._device.holds(tensor)

    def write(self, start: int, generation: int, parts: Sequence[Part]) -> None:
        """See `OwnedRegion`. Queued on the calling thread's stream."""
        self._require_room()
        lane, memory = self._device.current_lane(), self._memory
        former = self._leases.get(start)
        self._leases[start] = generation
        if former is not None:
            lane.wait_word(memory, start + ACKNOWLEDGE, former & _WORD)
            self._watch_wait(lane, start + ACKNOWLEDGE, former & _WORD)
        _put_generation(lane, memory, start, 0)
        for offset, tensor in parts:
            lane.copy_in(memory, start + offset, tensor)
        _put_generation(lane, memory, start, generation)
        lane.put_word(memory, start + READY, generation & _WORD)
        self._last = lane.mark()

    def forget(self, start: int) -> None:
        """See `OwnedRegion`. The slot's next lease would wait for an acknowledgement that nobody writes."""
        self._leases.pop(start, None)

    def unlink(self) -> None:
        """See `OwnedRegion`. A handle cannot be taken back; a transport opens none twice."""

    def close(self) -> None:
        """See `OwnedRegion`. The memory is freed a while later: the peer may have it open still."""
        self._leave(after_s=GRACE_S)


class PeerCudaRegion(WatchedRegion):
    """A region at its reader's end, with a lane of its own, so that what it waits for holds up nobody else."""

    def __init__(
        self, device: IpcDevice, memory: DeviceMemory, watch: LeaseWatch, on_closed: Callable[[], None]
    ) -> None:
        super().__init__(device, memory, watch, on_closed, "ready")
        self._lane = device.new_lane()
        self._probe = b""

    def greet(self) -> None:
        """Make the round trip: read the probe and the region's ready word, wait for that, and answer by what was read.

        Nothing waits for a word that is not there. And what a read queues behind its wait is done once before: CUDA
        loads a kernel when it is first wanted, may wait for the whole device then, and lets nobody end a wait until
        that is over.

        Raises:
            Unavailable: the word is not there, or CUDA fails.
        """
        self._require_room()
        lane, memory = self._lane, self._memory
        begin = lane.fetch(memory, 0, FIRST_SLOT)
        if int.from_bytes(begin[PROBE.size + READY :][:4], "little") != GREETING:
            raise Unavailable("the peer's ready word is not there")
        self._probe = begin[: PROBE.size]
        copy = lane.copy_out(memory, 0, torch.float32, (PROBE.size // torch.float32.itemsize,))
        lane.blank_unless(memory, 0, 0, [copy])
        lane.fetch(memory, 0, PROBE.size)
        lane.wait_word(memory, PROBE.size + READY, GREETING)
        self._watch_wait(lane, PROBE.size + READY, GREETING)
        lane.put_word(memory, PROBE.size + ACKNOWLEDGE, probe_answer(self._probe))
        lane.fetch(memory, PROBE.size, HEADER.size)  # once it returns, the answer is there
        if self.fault:
            raise Unavailable(self.fault)

    def read_probe(self) -> bytes:
        """See `PeerRegion`."""
        return self._probe

    def read(self, start: int, generation: int, parts: Sequence[tuple[int, Layout]]) -> Received:
        """See `PeerRegion`."""
        if not 0 < generation <= _MAX_GENERATION:
            refuse("no such generation")
        if not all(layout.dtype.is_floating_point for _, layout in parts):
            refuse("no dtype for device memory")
        try:
            return self._queue_read(start, generation, parts)
        except Unavailable as error:
            self.fault = self.fault or error.message
            refuse(self.fault)

    def _queue_read(self, start: int, generation: int, parts: Sequence[tuple[int, Layout]]) -> Received:
        self._require_room()
        lane, memory = self._lane, self._memory
        lane.wait_word(memory, start + READY, generation & _WORD)
        self._watch_wait(lane, start + READY, generation & _WORD)
        tensors = [lane.copy_out(memory, start + offset, layout.dtype, layout.shape) for offset, layout in parts]
        lane.blank_unless(memory, start, generation, tensors)
        lane.put_word(memory, start + ACKNOWLEDGE, generation & _WORD)
        self._last = lane.mark()
        return Received(tensors, self._last, tensors)

    def close(self) -> None:
        """See `PeerRegion`. The memory is let go as soon as the device is done with it."""
        self._leave()

    def _let_go(self) -> None:
        self._device.free_lane(self._lane)
        super()._let_go()


def probe_answer(probe: bytes) -> int:
    """The acknowledge word of who has read a probe: its last four bytes; never 0, which is there from the start."""
    return int.from_bytes(probe[-4:], "little") | 1


def _put_generation(lane: Lane, memory: DeviceMemory, start: int, generation: int) -> None:
    """In two words, in such an order that what a reader finds between them is no generation it was told of."""
    low, high = (start, generation & _WORD), (start + 4, generation >> 32)
    for offset, value in (high, low) if generation else (low, high):
        lane.put_word(memory, offset, value)

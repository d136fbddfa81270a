"""The reader's end of a region of a GPU; `cuda_regions.py` says how both ends go on."""

from collections.abc import Callable, Sequence

import torch

from ..cuda.device_memory import DeviceMemory, IpcDevice
from ..errors import Unavailable
from .cuda_regions import GREETING, OWN, probe_answer
from .lease_watch import LeaseWatch
from .region_transport import PROBE, Received
from .region_words import WORD, RegionWords
from .tensors import Layout, refuse
from .watched_region import WatchedRegion

_MAX_GENERATION = (1 << 63) - 1


class PeerCudaRegion(WatchedRegion):
    """A region at its reader's end, with a lane of its own, so that what it waits for holds up nobody else."""

    def __init__(
        self,
        device: IpcDevice,
        memory: DeviceMemory,
        words: RegionWords,
        watch: LeaseWatch,
        on_closed: Callable[[], None],
    ) -> None:
        super().__init__(device, memory, words, watch, on_closed)
        self._lane = device.new_lane()
        self._probe = b""

    def greet(self) -> None:
        """Make the round trip: read the probe and the region's ready word, and answer by what was read.

        The stream waits for a word only when the host has seen the one and the stream's own answer: then words pass in
        both directions. And what a read queues behind its wait is done once before: CUDA loads a kernel when it is
        first wanted, may wait for the whole device then, and holds up other calls of the process meanwhile.

        Raises:
            Unavailable: words or contents do not pass, or CUDA fails.
        """
        self._require_use()
        lane, memory, words = self._lane, self._memory, self._words
        ready, acknowledge = words.ready(OWN), words.acknowledge(OWN)
        if words.load(ready) != GREETING:
            raise Unavailable("the peer's ready word is not there")
        self._probe = lane.fetch(memory, 0, PROBE.size)
        copy = lane.copy_out(memory, 0, torch.float32, (PROBE.size // torch.float32.itemsize,))
        lane.blank_unless(memory, 0, 0, [copy])
        answer = probe_answer(self._probe)
        lane.put_word(words.on_device, acknowledge, answer)
        lane.fetch(memory, 0, PROBE.size)  # once it returns, the answer is there
        if words.load(acknowledge) != answer:
            raise Unavailable("what the GPU writes into the region's words does not arrive there")
        self._wait(lane, ready, GREETING)
        lane.fetch(memory, 0, PROBE.size)

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
            self._break(self._lane, error)
            refuse(self.fault)

    def _queue_read(self, start: int, generation: int, parts: Sequence[tuple[int, Layout]]) -> Received:
        self._require_use()
        lane, memory, words = self._lane, self._memory, self._words
        self._wait(lane, words.ready(start), generation & WORD)
        tensors = [lane.copy_out(memory, start + offset, layout.dtype, layout.shape) for offset, layout in parts]
        lane.blank_unless(memory, start, generation, tensors)
        lane.put_word(words.on_device, words.acknowledge(start), generation & WORD)
        self._last = lane.mark()
        return Received(tensors, self._last, tensors)

    def close(self) -> None:
        """See `PeerRegion`. The memory is let go as soon as the device is done with it."""
        self._leave()

    def _let_go(self) -> None:
        self._device.free_lane(self._lane)
        super()._let_go()

"""A device as `allroads.cuda.device_memory` asks for one, without a GPU: its memory is a file that processes map.

A lane is a thread that does its work in order, so a word that does not come really holds up all that is behind it.
Floating-point tensors count as the device's, all others as the host's. Every call that would be one of CUDA's asks
`Driver` first, which can hold all of them up; what is queued goes on.
"""

import mmap
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from uuid import UUID, uuid4

import torch
from allroads.cuda.device_memory import HANDLE_BYTES, DeviceMemory, HostWords, Lane
from allroads.errors import InvalidArgument, Unavailable
from torch import Tensor

WORD = struct.Struct("<I")
GPU = str(UUID(int=7))
_LOOK_S = 0.001


class Driver:
    """What CUDA's calls of one process go through."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self.held_up: SimpleQueue[str] = SimpleQueue()
        """Calls that came while none was let through."""

    def block(self) -> None:
        """Hold up every call from now on, as CUDA does where it waits for the device with its lock in hand."""
        self._free.clear()

    def unblock(self) -> None:
        self._free.set()

    def enter(self, name: str) -> None:
        if not self._free.is_set():
            self.held_up.put(name)
            assert self._free.wait(60)


class FileWords:
    """A mapping that is the caller's."""

    def __init__(self, mapped: mmap.mmap, driver: Driver) -> None:
        self._words: memoryview | None = memoryview(mapped).cast("I")
        self._driver = driver
        self.address = torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()

    def load(self, offset: int) -> int:
        if self._words is None:
            raise ValueError("the words are closed")
        return self._words[offset // WORD.size]

    def store(self, offset: int, value: int) -> None:
        if self._words is None:
            raise ValueError("the words are closed")
        self._words[offset // WORD.size] = value

    def close(self) -> None:
        self._driver.enter("unregister")
        if self._words is not None:
            self._words.release()
            self._words = None


class FileMemory:
    """A file, mapped."""

    def __init__(self, path: Path, size_bytes: int, driver: Driver) -> None:
        self.size_bytes, self._driver = size_bytes, driver
        self.handle = path.name.encode().ljust(HANDLE_BYTES, b"\0")
        with path.open("r+b") as file:
            self.mapped = mmap.mmap(file.fileno(), size_bytes)
        self._bytes: Tensor | None = torch.frombuffer(self.mapped, dtype=torch.uint8)
        self.address = self._bytes.data_ptr()
        self.closed = threading.Event()

    def view(self, offset: int, num_bytes: int) -> Tensor:
        assert self._bytes is not None, "work on memory that was given back"
        return self._bytes[offset : offset + num_bytes]

    def store(self, offset: int, value: int) -> None:
        # One aligned store: no reader sees half of it.
        self.view(offset, 4).view(torch.uint32)[0] = value

    def close(self) -> None:
        self._driver.enter("close")
        self._bytes = None
        self.closed.set()


class FileMark:
    """A place in a lane's work; whoever joins it waits, as a stream would."""

    def __init__(self, driver: Driver) -> None:
        self.reached, self._driver = threading.Event(), driver

    def is_reached(self) -> bool:
        self._driver.enter("is_reached")
        return self.reached.is_set()

    def join(self, tensors: Sequence[Tensor]) -> None:
        self._driver.enter("join")
        assert self.reached.wait(30)


class FileLane:
    """A thread that works in order."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.queued: list[str] = []
        threading.Thread(target=self._run, daemon=True).start()

    def put_word(self, memory: DeviceMemory | HostWords, offset: int, value: int) -> None:
        assert isinstance(memory, FileMemory | FileWords)
        self._queue("put_word", lambda: memory.store(offset, value))

    def wait_word(self, words: HostWords, offset: int, value: int) -> None:
        def wait() -> None:
            look = threading.Event()
            # Not by torch, inside of which a thread must not be when the interpreter ends.
            while (words.load(offset) - value) & 0x80000000:
                look.wait(_LOOK_S)  # another process writes it

        self._queue("wait_word", wait)

    def copy_in(self, memory: DeviceMemory, offset: int, tensor: Tensor) -> None:
        place = memory.view(offset, tensor.nbytes).view(tensor.dtype).view(tensor.shape)
        self._queue("copy_in", lambda: place.copy_(tensor))

    def copy_out(self, memory: DeviceMemory, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        copy = torch.zeros(tuple(shape), dtype=dtype)
        self._queue("copy_out", lambda: copy.copy_(memory.view(offset, copy.nbytes).view(dtype).view(copy.shape)))
        return copy

    def blank_unless(self, memory: DeviceMemory, offset: int, value: int, tensors: Sequence[Tensor]) -> None:
        def blank() -> None:
            differs = (memory.view(offset, 8).view(torch.int64) != value).view(())
            for tensor in tensors:
                tensor.masked_fill_(differs, float("nan"))

        self._queue("blank_unless", blank)

    def mark(self) -> FileMark:
        mark = FileMark(self._driver)
        self._queue("mark", mark.reached.set)
        return mark

    def fetch(self, memory: DeviceMemory, offset: int, num_bytes: int) -> bytes:
        self.mark().join([])
        return memory.view(offset, num_bytes).numpy().tobytes()

    def _queue(self, name: str, work: Callable[[], object]) -> None:
        self._driver.enter(name)
        self.queued.append(name)
        self._work.put(lambda: (work(), None)[1])

    def _run(self) -> None:
        while True:
            self._work.get()()


class SharedDevice:
    """The device. Processes share its memory where they share the directory."""

    def __init__(self, directory: Path, uuid: str = GPU) -> None:
        self.torch_device, self.uuid = torch.device("cpu"), uuid
        self.driver = Driver()
        self.opened: list[FileMemory] = []
        self.made: list[FileMemory] = []
        self.current = FileLane(self.driver)
        self.lanes: list[FileLane] = []
        self.lanes_out = 0
        self._directory = directory

    def allocate(self, size_bytes: int) -> FileMemory:
        self.driver.enter("allocate")
        path = self._directory / uuid4().hex
        path.write_bytes(bytes(size_bytes))
        memory = FileMemory(path, size_bytes, self.driver)
        self.made.append(memory)
        return memory

    def open(self, handle: bytes, size_bytes: int) -> FileMemory:
        self.driver.enter("open")
        path = self._directory / handle.rstrip(b"\0").decode("ascii", "replace")
        if not path.is_file():
            raise Unavailable("cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_VALUE")
        if path.stat().st_size < size_bytes:
            raise InvalidArgument("the region is not valid")
        memory = FileMemory(path, size_bytes, self.driver)
        self.opened.append(memory)
        return memory

    def register(self, memory: mmap.mmap) -> FileWords:
        self.driver.enter("register")
        return FileWords(memory, self.driver)

    def words(self) -> FileWords:
        """Some that nobody else has, all zero."""
        return self.register(mmap.mmap(-1, mmap.PAGESIZE))

    def holds(self, tensor: Tensor) -> bool:
        return tensor.is_floating_point()

    def current_lane(self) -> Lane:
        return self.current

    def new_lane(self) -> Lane:
        self.driver.enter("new_lane")
        self.lanes_out += 1
        self.lanes.append(FileLane(self.driver))
        return self.lanes[-1]

    def free_lane(self, lane: Lane) -> None:
        self.lanes_out -= 1

"""A device as `allroads.cuda.device_memory` asks for one, without a GPU: its memory is a file that processes map.

A lane is a thread that does its work in order, so a word that does not come really holds up all that is behind it.
Floating-point tensors count as the device's, all others as the host's.
"""

import mmap
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from uuid import UUID, uuid4

import torch
from allroads.cuda.device_memory import HANDLE_BYTES, DeviceMemory, Lane
from allroads.errors import InvalidArgument, Unavailable
from torch import Tensor

WORD = struct.Struct("<I")
GPU = str(UUID(int=7))
_LOOK_S = 0.001


class FileMemory:
    """A file, mapped."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.handle = path.name.encode().ljust(HANDLE_BYTES, b"\0")
        with path.open("r+b") as file:
            self.mapped = mmap.mmap(file.fileno(), size_bytes)
        self._bytes: Tensor | None = torch.frombuffer(self.mapped, dtype=torch.uint8)
        self.address = self._bytes.data_ptr()
        self.closed = threading.Event()

    def view(self, offset: int, num_bytes: int) -> Tensor:
        assert self._bytes is not None, "work on memory that was given back"
        return self._bytes[offset : offset + num_bytes]

    def put_word(self, offset: int, value: int) -> None:
        # One aligned store: no reader sees half of it.
        self.view(offset, 4).view(torch.uint32)[0] = value

    def close(self) -> None:
        self._bytes = None
        self.closed.set()


class FileMark:
    """A place in a lane's work; whoever joins it waits, as a stream would."""

    def __init__(self) -> None:
        self.reached = threading.Event()

    def is_reached(self) -> bool:
        return self.reached.is_set()

    def join(self, tensors: Sequence[Tensor]) -> None:
        assert self.reached.wait(30)


class FileLane:
    """A thread that works in order."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.queued: list[str] = []
        threading.Thread(target=self._run, daemon=True).start()

    def put_word(self, memory: DeviceMemory, offset: int, value: int) -> None:
        self._queue("put_word", lambda: memory.put_word(offset, value))

    def wait_word(self, memory: DeviceMemory, offset: int, value: int) -> None:
        def wait() -> None:
            assert isinstance(memory, FileMemory)
            look = threading.Event()
            # Not by torch, inside of which a thread must not be when the interpreter ends.
            while (WORD.unpack_from(memory.mapped, offset)[0] - value) & 0x80000000:
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
        mark = FileMark()
        self._queue("mark", mark.reached.set)
        return mark

    def fetch(self, memory: DeviceMemory, offset: int, num_bytes: int) -> bytes:
        self.mark().join([])
        return memory.view(offset, num_bytes).numpy().tobytes()

    def _queue(self, name: str, work: Callable[[], object]) -> None:
        self.queued.append(name)
        self._work.put(lambda: (work(), None)[1])

    def _run(self) -> None:
        while True:
            self._work.get()()


class SharedDevice:
    """The device. Processes share its memory where they share the directory."""

    def __init__(self, directory: Path, uuid: str = GPU) -> None:
        self.torch_device, self.uuid = torch.device("cpu"), uuid
        self.opened: list[FileMemory] = []
        self.made: list[FileMemory] = []
        self.current = FileLane()
        self.lanes: list[FileLane] = []
        self.lanes_out = 0
        self._directory = directory

    def allocate(self, size_bytes: int) -> FileMemory:
        path = self._directory / uuid4().hex
        path.write_bytes(bytes(size_bytes))
        memory = FileMemory(path, size_bytes)
        self.made.append(memory)
        return memory

    def open(self, handle: bytes, size_bytes: int) -> FileMemory:
        path = self._directory / handle.rstrip(b"\0").decode("ascii", "replace")
        if not path.is_file():
            raise Unavailable("cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_VALUE")
        if path.stat().st_size < size_bytes:
            raise InvalidArgument("the region is not valid")
        memory = FileMemory(path, size_bytes)
        self.opened.append(memory)
        return memory

    def holds(self, tensor: Tensor) -> bool:
        return tensor.is_floating_point()

    def current_lane(self) -> Lane:
        return self.current

    def new_lane(self) -> Lane:
        self.lanes_out += 1
        self.lanes.append(FileLane())
        return self.lanes[-1]

    def free_lane(self, lane: Lane) -> None:
        self.lanes_out -= 1

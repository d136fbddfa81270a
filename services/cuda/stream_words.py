"""Lanes of a GPU: torch's streams, with words that one process's stream writes and another's waits for.

A word is written by `cuStreamWriteValue32` and waited for by `cuStreamWaitValue32`, both queued like a kernel, so
neither host waits. The driver orders a write behind the work before it as `__threadfence_system` does.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..errors import Unavailable
from .device_memory import DeviceMemory, HostWords
from .driver import call, entered
from .driver_mark import DriverMark, EventPool


class CudaMark:
    """An event of torch's, for a process that shares no memory and needs no bindings."""

    def __init__(self, stream: "torch.cuda.Stream") -> None:
        with told():
            self._event = torch.cuda.Event()
            self._event.record(stream)
        self._device = stream.device

    def is_reached(self) -> bool:
        """See `Mark`."""
        with told():
            return bool(self._event.query())

    def join(self, tensors: Sequence[Tensor]) -> None:
        """See `Mark`. Torch keeps the tensors' memory until the joining stream is done with it."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._event)
        for tensor in tensors:
            tensor.record_stream(stream)


def mark_here(device: torch.device) -> CudaMark:
    """The end of what the calling thread has queued on a GPU so far."""
    return CudaMark(torch.cuda.current_stream(device))


class CudaLane:
    """A stream of a device. `events`: those of the device's primary context, which torch uses as well."""

    def __init__(self, stream: "torch.cuda.Stream", events: EventPool) -> None:
        self._stream, self._events, self._context = stream, events, events.context

    def put_word(self, memory: DeviceMemory | HostWords, offset: int, value: int) -> None:
        """See `Lane`."""
        with entered(self._context):
            # 0: with the fence that orders it behind the work before.
            call("cuStreamWriteValue32", self._stream.cuda_stream, memory.address + offset, value, 0)

    def wait_word(self, words: HostWords, offset: int, value: int) -> None:
        """See `Lane`."""
        with entered(self._context):
            # 0: greater or equal in cyclic order.
            call("cuStreamWaitValue32", self._stream.cuda_stream, words.address + offset, value, 0)

    def copy_in(self, memory: DeviceMemory, offset: int, tensor: Tensor) -> None:
        """See `Lane`."""
        place = memory.view(offset, tensor.nbytes).view(tensor.dtype).view(tensor.shape)
        with told(), torch.cuda.stream(self._stream):
            place.copy_(tensor, non_blocking=True)

    def copy_out(self, memory: DeviceMemory, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """See `Lane`."""
        with told(), torch.cuda.stream(self._stream):
            copy = torch.empty(tuple(shape), dtype=dtype, device=self._stream.device)
            return copy.copy_(memory.view(offset, copy.nbytes).view(dtype).view(copy.shape), non_blocking=True)

    def blank_unless(self, memory: DeviceMemory, offset: int, value: int, tensors: Sequence[Tensor]) -> None:
        """See `Lane`."""
        with told(), torch.cuda.stream(self._stream):
            differs = (memory.view(offset, 8).view(torch.int64) != value).view(())
            for tensor in tensors:
                tensor.masked_fill_(differs, float("nan"))

    def mark(self) -> DriverMark:
        """See `Lane`."""
        return DriverMark(self._stream, self._events)

    def fetch(self, memory: DeviceMemory, offset: int, num_bytes: int) -> bytes:
        """See `Lane`."""
        with told(), torch.cuda.stream(self._stream):
            # To pageable memory: torch waits until the copy is done.
            return memory.view(offset, num_bytes).cpu().numpy().tobytes()


@contextmanager
def told() -> Iterator[None]:
    """Torch tells what CUDA says by RuntimeError.

    Raises:
        Unavailable: instead.
    """
    try:
        yield
    except RuntimeError as error:
        raise Unavailable(f"torch failed on the GPU: {error}") from error

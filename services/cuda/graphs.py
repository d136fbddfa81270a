"""Work of a GPU that is recorded once and from then on launched at once: CUDA graphs.

A graph reads and writes the same memory each time. What changes between two launches must be copied into tensors that
stay, and nothing in it may wait for the device. What it needs in between comes from the recorder's pool, which all of
its graphs use over again: so they are never launched side by side.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

import torch

from .capturing import CAPTURING
from .stream import Priority, priority_number

ResultT = TypeVar("ResultT")

_NUM_WARM_UPS = 2
"""Runs before the one that is recorded: kernels are loaded, and libraries take the memory that they keep."""


@dataclass(frozen=True, slots=True)
class Recording(Generic[ResultT]):
    """Work that can be done again."""

    result: ResultT
    """What it gives, always in the same memory: there after a `replay`, until its recorder's next replay or record."""
    replay: Callable[[], None]
    """Do it again, on the caller's stream, without waiting for it."""
    work: Callable[[], ResultT]
    """What was recorded, with all tensors that it reads, which thereby stay."""


class Recorder(Protocol):
    """Records work whose recordings are replayed one after the other: by one thread, on one stream."""

    def record(self, work: Callable[[], ResultT]) -> Recording[ResultT]:
        """Run the work a few times, then record it. Large work comes first, so that small work fits what it took.

        Args:
            work: launches kernels for tensors that stay where they are, and makes others; never waits for the device.

        Raises:
            RuntimeError: it cannot be recorded, or memory is short. The recorder's other recordings are still good.
        """
        ...

    def reserved_bytes(self) -> int:
        """Memory of the device that this process needs, for recordings and all else."""
        ...


class CudaRecorder:
    """Records CUDA graphs on a stream of its own, in a pool of its own.

    Services that share a process have a recorder each, since their graphs run side by side. The stream is its own for
    the same reason: on it libraries keep work space that graphs of another recorder must not write to.
    """

    def __init__(self, device: torch.device, priority: Priority = "normal") -> None:
        """`priority`: of the recorded kernels, whatever stream they are launched on."""
        self._device = device
        with torch.cuda.device(device):
            bounds = torch.cuda.Stream.priority_range()  # type: ignore[call-arg] # static, whatever its stub says
            self._stream = torch.cuda.Stream(priority=priority_number(priority, bounds))
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], ResultT]) -> Recording[ResultT]:
        """See `Recorder.record`. Other threads may go on with the device meanwhile."""
        with CAPTURING, torch.cuda.device(self._device), torch.inference_mode():
            self._stream.wait_stream(torch.cuda.current_stream())
            # Also after a failure, for then torch does not leave the stream by itself.
            with torch.cuda.stream(self._stream):
                for _ in range(_NUM_WARM_UPS):
                    work()
                graph = torch.cuda.CUDAGraph()
                try:
                    # Not "global", which forbids other threads to allocate; they do so outside of the pool.
                    with torch.cuda.graph(
                        graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                    ):
                        result = work()
                except RuntimeError:
                    self._abandon()
                    raise
            self._stream.synchronize()
        return Recording(result, graph.replay, work)

    def reserved_bytes(self) -> int:
        """See `Recorder.reserved_bytes`. What torch holds and nobody needs is given back first."""
        with CAPTURING:
            torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def _abandon(self) -> None:
        """End a failed capture for torch's allocators.

        Where CUDA will not end it, torch goes on as if it were under way: it reuses no memory of the device that
        another stream had, and its memory of the host takes no second capture into the same pool. There is no public
        way to tell the first; where torch has ended it, this says that nothing is under way. Later recordings get
        another pool.
        """
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
        self._pool = torch.cuda.graph_pool_handle()


def recorder_on(device: torch.device, graphs: Literal["auto", "off"], priority: Priority) -> Recorder | None:
    """A recorder for a device that can be recorded, unless the setting says no; else None."""
    return CudaRecorder(device, priority) if device.type == "cuda" and graphs == "auto" else None


def first_line(error: BaseException) -> str:
    """What went wrong first, in a line: the end of a spoilt recording raises once more, and CUDA adds much advice."""
    while isinstance(error, RuntimeError) and isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return str(error).partition("\n")[0] or type(error).__name__

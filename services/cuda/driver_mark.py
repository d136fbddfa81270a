"""Places in a stream's work, by events of the driver's.

Not by torch's: some of their calls keep Python's lock while they wait for CUDA, and with it the thread that would end
what CUDA waits for.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .driver import call, entered, is_ready

_DISABLE_TIMING = 2


class EventPool:
    """Events of one context, used again when their marks are gone: giving one back asks CUDA for nothing."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.free: list[Any] = []

    def take(self) -> Any:
        """One that nobody uses. The context is entered."""
        try:
            return self.free.pop()
        except IndexError:
            return call("cuEventCreate", _DISABLE_TIMING)


class DriverMark:
    """An event in a stream."""

    def __init__(self, stream: "torch.cuda.Stream", events: EventPool) -> None:
        self._context, self._device = events.context, stream.device
        with entered(self._context):
            self._event = events.take()
            weakref.finalize(self, events.free.append, self._event).atexit = False
            call("cuEventRecord", self._event, stream.cuda_stream)

    def is_reached(self) -> bool:
        """See `Mark`."""
        with entered(self._context):
            return is_ready("cuEventQuery", self._event)

    def join(self, tensors: Sequence[Tensor]) -> None:
        """See `Mark`. Torch keeps the tensors' memory until the joining stream is done with it."""
        stream = torch.cuda.current_stream(self._device)
        with entered(self._context):
            call("cuStreamWaitEvent", stream.cuda_stream, self._event, 0)
        for tensor in tensors:
            tensor.record_stream(stream)

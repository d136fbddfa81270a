"""Numbers that are written on the host and copied to a device again and again, out of the same memory."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class HostArray:
    """A row of whole numbers of the host, as numpy's and as torch's: page-locked where a GPU reads it.

    A copy from page-locked memory joins the stream and the host goes on, so the memory must stay as it is until the
    copy is made; see `CopyGuard`.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, size: int = 0) -> None:
        """`device`: that to which it is copied."""
        self._dtype = dtype
        self._is_pinned = device.type == "cuda"
        self.tensor = torch.empty(0, dtype=dtype)
        self.array: NDArray[Any] = np.empty(0)
        self.reserve(size)

    def reserve(self, size: int) -> None:
        """Have room for so many numbers; what was in it is lost where it grows."""
        if size > len(self.tensor) or not size:
            self.tensor = torch.zeros(2 * size, dtype=self._dtype, pin_memory=self._is_pinned)
            self.array = self.tensor.numpy()


class CopyGuard:
    """Around the use of host memory: waits until what was copied out of it last is copied. Without a GPU for nothing.

    `with guard: ...` writes the memory and puts its copies into the current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def __enter__(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def __exit__(self, *_: object) -> None:
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

"""Memory of a GPU that the driver gave or opened, seen as a tensor.

Not torch's: its allocator cuts what it has into pieces, and with `expandable_segments` none of it can be exported.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from .capturing import CAPTURING
from .driver import entered
from .stream_words import told


class CudaMemory:
    """One allocation of the driver's, whole. `give_back`: the call that ends it."""

    def __init__(
        self,
        address: int,
        size_bytes: int,
        handle: bytes,
        torch_device: torch.device,
        *,
        context: Any,
        give_back: Callable[[int], None],
    ) -> None:
        self.address, self.size_bytes, self.handle = address, size_bytes, handle
        self._context, self._give_back = context, give_back
        self._lock = Lock()
        with told():
            self._bytes: Tensor | None = torch.as_tensor(_Array(address, size_bytes), device=torch_device)

    def view(self, offset: int, num_bytes: int) -> Tensor:
        """See `DeviceMemory`."""
        if self._bytes is None:
            raise ValueError("the memory is closed")
        return self._bytes[offset : offset + num_bytes]

    def close(self) -> None:
        """See `DeviceMemory`. May wait for the whole device, as the driver likes."""
        with self._lock:
            if self._bytes is not None:
                self._bytes = None
                with CAPTURING, entered(self._context):
                    self._give_back(self.address)


class _Array:
    """How a range of device memory is told to torch."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }

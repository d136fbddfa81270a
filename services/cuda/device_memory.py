"""What two processes need of a GPU to share memory of it: memory, work in order, and words to wait for.

Words lie in the host's memory, so that a host writes them too: a wait ends by a plain store, which nothing holds up.

`ipc.py` has the real thing. Whoever uses these classes says nothing to CUDA itself, so all that is about leases can
be run without a GPU.
"""

import mmap
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

HANDLE_BYTES = 64
"""Of a `cudaIpcMemHandle_t`."""


class DeviceMemory(Protocol):
    """Memory of one device, made here or opened."""

    size_bytes: int
    address: int
    handle: bytes
    """What another process opens it by."""

    def view(self, offset: int, num_bytes: int) -> Tensor:
        """These bytes as they lie there, uint8 [num_bytes], for work that is queued before `close`."""
        ...

    def close(self) -> None:
        """Give the memory back. No work may use it any more. Harmless when repeated.

        Raises:
            Unavailable: CUDA failed; says which call and how.
        """
        ...


class HostWords(Protocol):
    """Words of 32 bits in memory of the host that the device reads and writes, too.

    `load` and `store` are the host's own, and ask CUDA for nothing. Offsets are in bytes, multiples of 4.
    """

    address: int
    """Where they begin, for the device."""

    def load(self, offset: int) -> int:
        """The word there.

        Raises:
            ValueError: the words are closed.
        """
        ...

    def store(self, offset: int, value: int) -> None:
        """Write a word; raises as `load` does."""
        ...

    def close(self) -> None:
        """Take them from the device. No work may use them any more. Harmless when repeated.

        Raises:
            Unavailable: CUDA failed; says which call and how. The words are closed all the same.
        """
        ...


class Mark(Protocol):
    """A place in a lane's work."""

    def is_reached(self) -> bool:
        """Whether all work before it is done. Does not wait for it, but CUDA may be busy with another call."""
        ...

    def join(self, tensors: Sequence[Tensor]) -> None:
        """Let what the calling thread queues from now on, and does with these tensors, wait for the mark.

        The host does not wait. `tensors`: those that were made by the work before the mark.
        """
        ...


class Lane(Protocol):
    """Work that a device does in order: a stream. No method but `fetch` makes the host wait for work.

    Every method raises `Unavailable` where CUDA fails, with the call and how.
    """

    def put_word(self, memory: DeviceMemory | HostWords, offset: int, value: int) -> None:
        """Write 32 bits, after all that is queued, and not before it can be seen."""
        ...

    def wait_word(self, words: HostWords, offset: int, value: int) -> None:
        """Let all that is queued later wait until the word there is `value` or follows it, in cyclic order.

        Only a word of the host's can be waited for: whoever queues this must be able to end it.
        """
        ...

    def copy_in(self, memory: DeviceMemory, offset: int, tensor: Tensor) -> None:
        """Copy a tensor to memory, row-major. `offset`: in bytes, a multiple of 16."""
        ...

    def copy_out(self, memory: DeviceMemory, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """A new tensor of the device with the values at `offset`."""
        ...

    def blank_unless(self, memory: DeviceMemory, offset: int, value: int, tensors: Sequence[Tensor]) -> None:
        """Fill floating-point tensors with NaN unless the 64 bits there are `value`; the device compares."""
        ...

    def mark(self) -> Mark:
        """This place in the work."""
        ...

    def fetch(self, memory: DeviceMemory, offset: int, num_bytes: int) -> bytes:
        """The bytes there once all that is queued is done. The host waits for that."""
        ...


class IpcDevice(Protocol):
    """A device whose memory can be shared with other processes."""

    torch_device: torch.device
    uuid: str
    """Of the device, the same in every process."""

    def allocate(self, size_bytes: int) -> DeviceMemory:
        """New memory, all zero, that another process can open.

        Raises:
            Unavailable: there is too little, or it cannot be shared.
        """
        ...

    def open(self, handle: bytes, size_bytes: int) -> DeviceMemory:
        """Another process's memory. Both arguments are untrusted.

        Raises:
            InvalidArgument: the memory is smaller than that.
            Unavailable: it cannot be opened here.
        """
        ...

    def register(self, memory: mmap.mmap) -> HostWords:
        """Words over a mapping of whole pages, which the caller keeps until they are closed.

        Raises:
            Unavailable: the device cannot reach memory of the host.
        """
        ...

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies on the device."""
        ...

    def current_lane(self) -> Lane:
        """The one that the calling thread queues its work in."""
        ...

    def new_lane(self) -> Lane:
        """One that nobody else queues work in; given back by `free_lane`."""
        ...

    def free_lane(self, lane: Lane) -> None:
        """Take back a lane all of whose work is done."""
        ...

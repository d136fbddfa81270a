"""What an engine asks of the device it runs on. The CPU is one; every other kind is one more class here."""

import os
from typing import Protocol

import torch

from ..errors import StartupError
from .attention import AttentionBackend, KvShape
from .runner import Forward
from .sdpa_attention import SdpaBackend


class Device(Protocol):
    """A device's ways to keep KV, to attend, and to run a step."""

    torch_device: torch.device

    def memory_bytes(self) -> int:
        """Memory that the device has, used or not."""
        ...

    def attention(self, shape: KvShape, *, num_slots: int, max_blocks: int, dtype: torch.dtype) -> AttentionBackend:
        """KV memory of that shape and the attention over it.

        Args:
            shape: of the KV pool.
            num_slots: sequences that hold KV at once.
            max_blocks: blocks that one of them can have.
            dtype: of keys and values.
        """
        ...

    def capture(self, forward: Forward) -> Forward:
        """The same pass with as little cost of launching it as the device allows."""
        ...

    def describe(self) -> str:
        """The device, its attention and its way to run a step, in a few words for the log."""
        ...


class CpuDevice:
    """Processor cores and main memory."""

    torch_device = torch.device("cpu")

    def memory_bytes(self) -> int:
        """See `Device.memory_bytes`."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def attention(self, shape: KvShape, *, num_slots: int, max_blocks: int, dtype: torch.dtype) -> SdpaBackend:
        """See `Device.attention`."""
        return SdpaBackend(shape, num_slots=num_slots, max_blocks=max_blocks, dtype=dtype)

    def capture(self, forward: Forward) -> Forward:
        """See `Device.capture`. A CPU launches nothing, so there is nothing to save."""
        return forward

    def describe(self) -> str:
        """See `Device.describe`."""
        capability = torch.backends.cpu.get_cpu_capability()
        return f"cpu ({capability}, {torch.get_num_threads()} thread(s)): attention by sdpa, steps run directly"


def pick_device(name: str) -> Device:
    """The device of a name as torch writes it.

    Raises:
        StartupError: it is not supported.
    """
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise StartupError(f"device {name!r} is none that torch knows: {error}", field="device") from error
    if kind != "cpu":
        raise StartupError(f"device {name!r} is not supported, only cpu is", field="device")
    return CpuDevice()

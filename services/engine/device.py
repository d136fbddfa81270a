"""What an engine asks of the device it runs on. The CPU is one; every other kind is one more class here."""

import os
from typing import Protocol

import torch

from ..config import ModelSettings
from ..cuda.graphs import Recorder
from ..errors import StartupError
from .attention import AttentionBackend, KvShape
from .cuda_device import CudaDevice
from .kv_blocks import Allocate, zeros
from .runner import Forward, ModelRunner, Runner
from .sdpa_attention import SdpaBackend


class Device(Protocol):
    """A device's ways to keep KV, to attend, and to run a step."""

    torch_device: torch.device

    @property
    def recorder(self) -> Recorder | None:
        """Records what the engine's thread does again and again; None where nothing is recorded."""
        ...

    def memory_bytes(self) -> int:
        """Memory that the device has, used or not."""
        ...

    def attention(
        self, shape: KvShape, *, num_slots: int, max_blocks: int, dtype: torch.dtype, allocate: Allocate = zeros
    ) -> AttentionBackend:
        """KV memory of that shape and the attention over it.

        Args:
            shape: of the KV pool.
            num_slots: sequences that hold KV at once.
            max_blocks: blocks that one of them can have.
            dtype: of keys and values.
            allocate: gives the memory.
        """
        ...

    def runner(self, forward: Forward, backend: AttentionBackend, num_tokens: int) -> Runner:
        """What runs steps with a pass over a backend, at as little cost of launching them as the device allows.

        `num_tokens`: ids that the tokenizer knows; rows of the output layer beyond are padding.
        """
        ...

    def describe(self) -> str:
        """The device, its attention and its way to run a step, in a few words for the log."""
        ...


class CpuDevice:
    """Processor cores and main memory."""

    torch_device = torch.device("cpu")
    recorder: Recorder | None = None

    def memory_bytes(self) -> int:
        """See `Device.memory_bytes`."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def attention(
        self, shape: KvShape, *, num_slots: int, max_blocks: int, dtype: torch.dtype, allocate: Allocate = zeros
    ) -> SdpaBackend:
        """See `Device.attention`."""
        return SdpaBackend(shape, num_slots=num_slots, max_blocks=max_blocks, dtype=dtype, allocate=allocate)

    def runner(self, forward: Forward, backend: AttentionBackend, num_tokens: int) -> ModelRunner:
        """See `Device.runner`. A CPU launches nothing, so there is nothing to save."""
        return ModelRunner(forward, backend, num_tokens, self.torch_device)

    def describe(self) -> str:
        """See `Device.describe`."""
        capability = torch.backends.cpu.get_cpu_capability()
        return f"cpu ({capability}, {torch.get_num_threads()} thread(s)): attention by sdpa, steps run directly"


def pick_device(settings: ModelSettings) -> Device:
    """The device that a model's settings name, as torch writes it.

    Raises:
        StartupError: it is not supported, or not there.
    """
    try:
        device = torch.device(settings.device)
    except RuntimeError as error:
        raise StartupError(f"device {settings.device!r} is none that torch knows: {error}", field="device") from error
    if device.type == "cuda":
        return CudaDevice(device, settings)
    if device.type != "cpu":
        raise StartupError(f"device {settings.device!r} is not supported, only cpu and cuda are", field="device")
    return CpuDevice()

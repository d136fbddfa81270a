"""A CUDA device, as an engine sees it."""

import torch

from ..config import ModelSettings
from .attention import AttentionBackend, KvShape
from .runner import Forward, ModelRunner, Runner
from .sdpa_attention import SdpaBackend


class CudaDevice:
    """One GPU."""

    def __init__(self, torch_device: torch.device, settings: ModelSettings) -> None:
        self.torch_device = torch_device
        self._settings = settings

    def memory_bytes(self) -> int:
        """See `Device.memory_bytes`."""
        return int(torch.cuda.get_device_properties(self.torch_device).total_memory)

    def attention(self, shape: KvShape, *, num_slots: int, max_blocks: int, dtype: torch.dtype) -> AttentionBackend:
        """See `Device.attention`."""
        return SdpaBackend(shape, num_slots=num_slots, max_blocks=max_blocks, dtype=dtype)

    def runner(self, forward: Forward, backend: AttentionBackend, num_tokens: int) -> Runner:
        """See `Device.runner`."""
        return ModelRunner(forward, backend, num_tokens, self.torch_device)

    def describe(self) -> str:
        """See `Device.describe`."""
        return f"{self.torch_device}"

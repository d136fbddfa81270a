"""What memory bandwidth allows: bytes that must be read for a token, over the bandwidth that a copy reaches.

For N requests in step, nothing computed twice: the small model's weights are read once for N tokens, with the
router's; the large model's once for N of its own tokens, of which there are `share` a token; and each request's KV
by each model for each token that it computes. What goes on on one device shares its bandwidth, devices work side by
side. No system reaches it: requests do not stay in step, and every proposal that is turned down is computed again.
"""

import gc
import time
from dataclasses import dataclass

import torch

from .shapes import RouterShape, Shape

_COPY_BYTES = {"cpu": 1 << 26, "cuda": 1 << 32}
_NUM_COPIES = 10


@dataclass(frozen=True, slots=True)
class Work:
    """A pair and the texts that it writes."""

    slm: Shape
    llm: Shape
    router: RouterShape
    context: int
    """Tokens that attention reads on average."""
    bytes_per_weight: int
    has_two_devices: bool

    def seconds_per_token(self, share: float, num_requests: int, bytes_per_s: float, *, slm: bool = True) -> float:
        """The least time of a token of all requests together. `slm`: whether the small model and the router run."""
        large = share * self._read(self.llm, num_requests)
        small = 0.0
        if slm:
            small = self._read(self.slm, num_requests)
            small += 4 * self.router.num_parameters(self.slm) / num_requests
        return (max(small, large) if self.has_two_devices else small + large) / bytes_per_s

    def _read(self, shape: Shape, num_requests: int) -> float:
        """Bytes for a token of a model: its part of the weights, and its KV."""
        kv_bytes = shape.kv_bytes_per_token * self.bytes_per_weight // 2
        return shape.num_read * self.bytes_per_weight / num_requests + self.context * kv_bytes


def copy_bytes_per_s(device: str) -> float:
    """Bytes read and written in a second by the best of some copies that no cache holds."""
    kind = torch.device(device).type
    source = torch.ones(_COPY_BYTES[kind], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best_s = float("inf")
    for _ in range(_NUM_COPIES):
        _wait(device)
        started = time.perf_counter()
        target.copy_(source)
        _wait(device)
        best_s = min(best_s, time.perf_counter() - started)
    num_bytes = 2 * len(source)
    del source, target
    free_memory()
    return num_bytes / best_s


def free_memory() -> None:
    """Give GPUs back what this process no longer uses: others need it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)

"""Numbers of the host on their way to a device, without waiting for it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def upload(values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of nested numbers on a device.

    To a GPU they go through page-locked memory, of which torch keeps a cache, so the copy joins the stream and the
    host goes on. Nothing waits.
    """
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def upload_tensor(host: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, by the same way; on the CPU it is the tensor itself."""
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)

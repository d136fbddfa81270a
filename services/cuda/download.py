"""Numbers of a device on their way to the host, all that are wanted in one copy."""

from collections.abc import Sequence

import torch
from torch import Tensor


def download(parts: Sequence[Tensor]) -> list[Tensor]:
    """The same on the host, each in its own shape. Waits for the device, once.

    Args:
        parts: int64, or floating-point, which arrives as float64 where it comes from a GPU.
    """
    if parts[0].device.type == "cpu":
        return list(parts)
    bits = [part if part.dtype is torch.int64 else part.double().view(torch.int64) for part in parts]
    host = torch.cat([part.flatten() for part in bits]).cpu().split([part.numel() for part in bits])
    return [
        (one if part.dtype is torch.int64 else one.view(torch.float64)).view(part.shape)
        for one, part in zip(host, parts, strict=True)
    ]

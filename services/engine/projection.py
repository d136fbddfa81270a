"""A product with a fixed matrix, in whichever of two ways is faster for it.

On a CPU oneDNN multiplies a few rows with a large matrix two to three times as fast as torch's own product
does if the matrix was laid out for it once; for small matrices its call costs more than it saves.
"""

import torch
from torch import Tensor
from torch.nn import functional

_MIN_PACKED_ELEMENTS = 1 << 18
"""Smaller matrices are left as they are (measured: even at 128 x 768, ahead from 384 x 1024 on)."""


class Projection:
    """x @ weight.T + bias, and the same added to a residual."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight`: [out, in]; `bias`: [out]."""
        self._is_packed = _can_pack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None) if self._is_packed else weight
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, in] to [n, out]."""
        if self._is_packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
            return product
        return functional.linear(rows, self._weight, self._bias)

    def add_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        """The residual [n, out], which is used up, + rows [n, in] @ weight.T. For projections without a bias."""
        if self._is_packed:
            total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, residual, self._weight, None, "add")
            return total
        # In place: a GPU would copy the residual first, which is a kernel more.
        return residual.addmm_(rows, self._weight.t())


def _can_pack(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and weight.numel() >= _MIN_PACKED_ELEMENTS
        and torch.backends.mkldnn.is_available()
        # Not public, though torch's own compiler calls it; without it everything works, more slowly.
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )

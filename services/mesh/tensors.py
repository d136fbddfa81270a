"""Tensors on the wire: dtype, shape, and where the bytes are.

Bytes travel as they lie in memory (row-major, little-endian), so every value arrives bit for bit: NaN,
-0.0 and bfloat16 too. Whatever comes from a peer is checked before anything is read.
"""

import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidArgument
from .wire import common_pb2 as pb

logger = logging.getLogger(__name__)

_DTYPES: dict["pb.DType.ValueType", torch.dtype] = {
    pb.DTYPE_FLOAT32: torch.float32,
    pb.DTYPE_FLOAT16: torch.float16,
    pb.DTYPE_BFLOAT16: torch.bfloat16,
    pb.DTYPE_INT64: torch.int64,
    pb.DTYPE_UINT32: torch.uint32,
    pb.DTYPE_UINT8: torch.uint8,
    pb.DTYPE_BOOL: torch.bool,
}
_WIRE_DTYPES = {dtype: number for number, dtype in _DTYPES.items()}
_MAX_DIMENSIONS = 8
_MAX_TENSOR_BYTES = 1 << 30

if sys.byteorder != "little":
    raise ImportError("tensors travel in little-endian byte order; this machine is big-endian")


@dataclass(frozen=True, slots=True)
class Layout:
    """What a reference says about its tensor, checked."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    num_bytes: int


def bytes_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The values of a tensor as a row-major array whose bytes are those of the tensor; a copy only of a view.

    Of few calls on purpose: each costs a microsecond, and this is done for every step.
    """
    # NumPy has no bfloat16.
    plain = tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor
    return np.ascontiguousarray(plain.numpy(force=True))


def wire_dtype(tensor: Tensor) -> "pb.DType.ValueType":
    """How a tensor's dtype is told on the wire.

    Raises:
        InvalidArgument: it does not travel.
    """
    dtype = _WIRE_DTYPES.get(tensor.dtype)
    if dtype is None:
        raise InvalidArgument(f"tensors of {tensor.dtype} do not travel; use one of {sorted(map(str, _WIRE_DTYPES))}")
    return dtype


def inline_reference(tensor: Tensor) -> pb.TensorRef:
    """A reference that carries the values itself."""
    return pb.TensorRef(dtype=wire_dtype(tensor), shape=tensor.shape, inline=bytes_of(tensor).tobytes())


def slice_reference(tensor: Tensor, *, region_id: int, offset: int, generation: int) -> pb.TensorRef:
    """A reference to values that were written into a region at `offset`."""
    place = pb.RegionSlice(region_id=region_id, offset_bytes=offset, size_bytes=tensor.nbytes, generation=generation)
    return pb.TensorRef(dtype=wire_dtype(tensor), shape=tensor.shape, slice=place)


def layout_of(reference: pb.TensorRef) -> Layout:
    """Check what a peer says about a tensor. Python's integers do not overflow.

    Raises:
        InvalidArgument: dtype unknown, shape beyond the limits, or size and shape that do not agree.
    """
    dtype = _DTYPES.get(reference.dtype)
    if dtype is None:
        refuse("unknown dtype")
    shape = tuple(reference.shape)
    # Zeros do not count here, else a huge dimension could hide behind one.
    extent = math.prod(size or 1 for size in shape) * dtype.itemsize
    if len(shape) > _MAX_DIMENSIONS or extent > _MAX_TENSOR_BYTES:
        refuse("shape beyond the limits")
    num_bytes = math.prod(shape) * dtype.itemsize
    where = reference.WhichOneof("location")
    told = len(reference.inline) if where == "inline" else reference.slice.size_bytes
    if where is None or told != num_bytes:
        refuse("size and shape do not agree")
    return Layout(dtype, shape, num_bytes)


def tensor_of(layout: Layout, data: bytearray) -> Tensor:
    """The tensor of a layout over bytes that nobody else holds."""
    if not data:
        return torch.empty(layout.shape, dtype=layout.dtype)
    if layout.dtype is torch.bool:
        # A byte other than 0 and 1 is no valid bool in memory.
        return torch.frombuffer(data, dtype=torch.uint8).reshape(layout.shape) != 0
    return torch.frombuffer(data, dtype=layout.dtype).reshape(layout.shape)


def refuse(reason: str) -> NoReturn:
    """Turn a reference down. The peer learns no more than that; the reason is for our own log.

    Raises:
        InvalidArgument: always.
    """
    logger.debug("tensor reference refused: %s", reason)
    raise InvalidArgument("the tensor reference is not valid")


def total_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes that the values of some tensors take, end to end."""
    return sum(tensor.nbytes for tensor in tensors)

"""KV memory seen as blocks, so that one process can copy those of another that runs the same model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from .block_pool import BlockPool

Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], Tensor]
"""What gives a backend the memory for its KV: all zero, of that shape, row-major."""


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of this process alone."""
    return torch.zeros(shape, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """The KV memory of a backend, cut into blocks along one dimension."""

    layout: str
    """Name of the way in which it lies; equal names and shapes mean equal bytes."""
    memory: Tensor
    """A row-major view of all of it."""
    dim: int
    """The dimension that counts blocks; there may be a few more than the pool has."""

    @property
    def num_blocks(self) -> int:
        """Blocks that the memory has room for."""
        return self.memory.shape[self.dim]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, over all layers."""
        return self.memory.nbytes // self.num_blocks

    def shape_of(self, num_blocks: int) -> tuple[int, ...]:
        """The shape of memory like this one with so many blocks."""
        shape = self.memory.shape
        return (*shape[: self.dim], num_blocks, *shape[self.dim + 1 :])


@dataclass(frozen=True, slots=True)
class KvIdentity:
    """Whose KV it is and how a block of it lies. KV may be exchanged where two are equal."""

    model_id: str
    weights_hash: str
    attention: str
    """Name of the layout."""
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size_tokens: int

    def difference(self, other: "KvIdentity") -> str:
        """The first field in which the two differ, with both values; empty where none does."""
        for one in fields(self):
            mine, its = getattr(self, one.name), getattr(other, one.name)
            if mine != its:
                return f"{one.name} is {mine!r} here and {its!r} there"
        return ""


class KvKeeper(Protocol):
    """What an engine lets be done with blocks that no sequence of its own holds."""

    @property
    def pool(self) -> BlockPool:
        """Who holds which block."""
        ...

    def give_up(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each. What may be NaN in them reaches nobody."""
        ...

    def spoil(self, blocks: Sequence[int]) -> None:
        """Overwrite what blocks hold that are nobody else's."""
        ...

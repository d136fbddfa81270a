"""Attention over paged KV, registered with transformers so that any of its causal models runs unmodified.

A step packs all rows into one sequence of tokens. `plan` works out once, for all layers, where the new
keys and values go and which cached ones each row reads; the plan travels through the model as a keyword.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION_NAME = "allroads_paged"
"""Value of `attn_implementation` with which models are loaded."""

_LONGEST_PADDED = 32
"""Rows with more new tokens than this are attended alone; shorter ones are padded to each other."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a step: tokens [start, end) of the sequence at `slot` of the block table."""

    slot: int
    start: int
    end: int


class Plan(Protocol):
    """What one step's attention needs, worked out by a backend."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Store the new keys and values, attend, and return [1, tokens, heads, head_dim].

        Args:
            layer: index of the layer.
            query: [1, heads, tokens, head_dim], RoPE applied.
            key: [1, kv_heads, tokens, head_dim] of the new tokens.
            value: as `key`.
            scaling: factor for the scores; None for 1 / sqrt(head_dim).
        """
        ...


class AttentionBackend(Protocol):
    """Owns the KV memory of one model and plans its steps."""

    block_table: Tensor
    """int64 [slots, blocks]: block ids of each sequence; where it has none, any valid id."""

    def plan(self, rows: list[Row]) -> Plan:
        """Plan a step whose packed tokens are those of the rows, in order."""
        ...

    def clear(self, blocks: list[int]) -> None:
        """Overwrite what blocks hold, so that NaN in them cannot reach the next who gets them."""
        ...


class SdpaBackend:
    """Paged attention by gathering blocks and torch's scaled_dot_product_attention. For the CPU."""

    def __init__(
        self, *, num_layers: int, num_kv_heads: int, head_dim: int, num_blocks: int, block_size: int,
        num_slots: int, max_blocks: int, dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        shape = (num_layers, num_blocks * block_size, num_kv_heads, head_dim)
        # Zeros, since a masked key still counts as 0 x value, which must not be 0 x NaN. The system gives zeroed
        # pages when they are first written, so an idle pool costs address space only.
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.block_table = torch.zeros((num_slots, max_blocks), dtype=torch.int64, device=device)
        self.block_size = block_size
        self._in_block = torch.arange(block_size, device=device)

    def clear(self, blocks: list[int]) -> None:
        """See `AttentionBackend.clear`."""
        slots = (torch.tensor(blocks).unsqueeze(1) * self.block_size + self._in_block).view(-1)
        self.keys[:, slots] = 0
        self.values[:, slots] = 0

    def plan(self, rows: list[Row]) -> "SdpaPlan":
        """Plan a step. Single-token rows are attended together, short extends padded, long ones alone."""
        offsets = [0]
        for row in rows:
            offsets.append(offsets[-1] + row.end - row.start)
        single: list[int] = []
        short: list[int] = []
        long: list[int] = []
        for index, row in enumerate(rows):
            length = row.end - row.start
            (single if length == 1 else short if length <= _LONGEST_PADDED else long).append(index)
        groups = [self._group(part, rows, offsets) for part in (single, short, *([i] for i in long)) if part]
        return SdpaPlan(self, self._slots_written(rows), groups)

    def _slots_written(self, rows: list[Row]) -> Tensor:
        if all(row.end - row.start == 1 for row in rows):
            slots = torch.tensor([row.slot for row in rows])
            positions = torch.tensor([row.start for row in rows])
        else:
            slots = torch.cat([torch.full((row.end - row.start,), row.slot) for row in rows])
            positions = torch.cat([torch.arange(row.start, row.end) for row in rows])
        blocks = self.block_table[slots, positions.div(self.block_size, rounding_mode="floor")]
        return blocks * self.block_size + positions % self.block_size

    def _group(self, members: list[int], rows: list[Row], offsets: list[int]) -> "_Group":
        part = [rows[index] for index in members]
        longest = max(row.end - row.start for row in part)
        num_blocks = -(-max(row.end for row in part) // self.block_size)
        blocks = self.block_table[torch.tensor([row.slot for row in part]), :num_blocks]
        read = (blocks.unsqueeze(-1) * self.block_size + self._in_block).view(-1)
        starts = torch.tensor([row.start for row in part]).view(-1, 1, 1, 1)
        reach = starts + torch.arange(longest).view(1, 1, -1, 1)
        hidden = torch.arange(num_blocks * self.block_size) > reach
        mask = torch.zeros(hidden.shape, dtype=self.keys.dtype).masked_fill_(hidden, float("-inf"))
        if len(part) == len(rows) and longest * len(part) == offsets[-1]:
            return _Group(len(part), None, None, read, mask)
        lengths = torch.tensor([row.end - row.start for row in part]).view(-1, 1)
        local = torch.arange(longest).expand(len(part), -1)
        tokens = torch.tensor([offsets[index] for index in members]).view(-1, 1) + local
        valid = local < lengths
        padded = torch.where(valid, tokens, tokens[:, :1])
        return _Group(len(part), padded.view(-1), valid.view(-1).nonzero().view(-1), read, mask)


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that are attended in one call, padded to the longest."""

    num_rows: int
    tokens: Tensor | None
    """int64 [rows * queries]: packed token of each padded query; None where all tokens are here in order."""
    valid: Tensor | None
    """int64: those places of `tokens` that are no padding; None as above."""
    read: Tensor
    """int64 [rows * keys]: slots of the cached keys."""
    mask: Tensor
    """[rows, 1, queries, keys]: 0 or -inf."""


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    """One step's reads and writes."""

    backend: SdpaBackend
    written: Tensor
    groups: list[_Group]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """See `Plan.attend`."""
        keys, values = self.backend.keys[layer], self.backend.values[layer]
        keys.index_copy_(0, self.written, key[0].transpose(0, 1))
        values.index_copy_(0, self.written, value[0].transpose(0, 1))
        packed = query[0].transpose(0, 1)
        out = torch.empty_like(packed)
        heads, width = packed.shape[1:]
        for group in self.groups:
            rows = group.num_rows
            chosen = packed if group.tokens is None else packed.index_select(0, group.tokens)
            queries = chosen.reshape(rows, -1, heads, width).transpose(1, 2)
            read_keys = keys.index_select(0, group.read).view(rows, -1, *keys.shape[1:]).transpose(1, 2)
            read_values = values.index_select(0, group.read).view(rows, -1, *values.shape[1:]).transpose(1, 2)
            attended = nn.functional.scaled_dot_product_attention(
                queries, read_keys, read_values, attn_mask=group.mask, scale=scaling, enable_gqa=True
            )
            flat = attended.transpose(1, 2).reshape(-1, heads, width)
            if group.tokens is None or group.valid is None:
                return flat.unsqueeze(0)
            out.index_copy_(0, group.tokens.index_select(0, group.valid), flat.index_select(0, group.valid))
        return out.unsqueeze(0)


def _paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    plan: Plan,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls in each layer."""
    return plan.attend(module.layer_idx, query, key, value, scaling), None  # type: ignore[arg-type]


# No mask function is registered under the name, so transformers builds no mask: causality is the plan's.
AttentionInterface.register(ATTENTION_NAME, _paged_attention)

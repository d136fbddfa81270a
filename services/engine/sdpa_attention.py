"""Paged attention by gathering blocks and torch's scaled_dot_product_attention.

For the CPU, and for GPUs that flashinfer does not serve. A step is worked out on the host, and what the device reads of
it is uploaded; nothing waits for the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..cuda.upload import upload, upload_tensor
from .attention import KvShape, Row
from .kv_blocks import Allocate, KvBlocks, zeros

_CPU = torch.device("cpu")
_LONGEST_PADDED = 32
"""Rows with more new tokens than this are attended alone; shorter ones are padded to each other."""


class SdpaBackend:
    """KV as [layers, 2 * kv_heads, slots, head_dim]: a block of a head is one piece of memory.

    Query heads that share a KV head are laid end to end as queries of that head, so nothing is repeated.
    """

    def __init__(
        self,
        shape: KvShape,
        *,
        num_slots: int,
        max_blocks: int,
        dtype: torch.dtype,
        device: torch.device = _CPU,
        allocate: Allocate = zeros,
    ) -> None:
        """A backend whose KV is on a device.

        Args:
            shape: of the KV pool.
            num_slots: sequences that hold KV at once.
            max_blocks: blocks that one of them can have.
            dtype: of queries, keys and values.
            device: of KV, queries and what comes out.
            allocate: gives the memory of the KV.
        """
        self.shape = shape
        self.device = device
        self._is_host = device.type == "cpu"
        num_heads, block_size = 2 * shape.num_kv_heads, shape.block_size
        # Zeros, since a masked key still counts as 0 x value, which must not be 0 x NaN. The system gives zeroed
        # pages when they are first written, so an idle pool costs address space only.
        kv_shape = (shape.num_layers, num_heads, shape.num_blocks * block_size, shape.head_dim)
        self.kv = allocate(kv_shape, dtype, device)
        self.blocks_of = self.kv.view(shape.num_layers, num_heads * shape.num_blocks, block_size * shape.head_dim)
        self._block_table = torch.zeros((num_slots, max_blocks), dtype=torch.int64)
        self._blocks: list[list[int]] = [[] for _ in range(num_slots)]
        self._head_offsets = (torch.arange(num_heads) * shape.num_blocks).view(2, 1, shape.num_kv_heads, 1)
        # Window i of `_reach` lets the keys before `max_length - i` through, and hides the others.
        self._max_length = max_blocks * block_size
        self._reach = torch.zeros(2 * self._max_length, dtype=dtype, device=device)
        self._reach[self._max_length :] = float("-inf")

    def assign(self, slot: int, blocks: list[int]) -> None:
        """See `AttentionBackend.assign`."""
        self._block_table[slot, : len(blocks)] = torch.tensor(blocks, dtype=torch.int64)
        self._blocks[slot] = list(blocks)

    def clear(self, blocks: list[int]) -> None:
        """See `AttentionBackend.clear`."""
        shape = self.shape
        pieces = self.kv.view(shape.num_layers, 2 * shape.num_kv_heads, shape.num_blocks, -1)
        pieces.index_fill_(2, upload(blocks, self.device, torch.int64), 0)

    def kv_blocks(self) -> KvBlocks:
        """See `AttentionBackend.kv_blocks`."""
        shape = self.shape
        pieces = (shape.num_layers, 2 * shape.num_kv_heads, shape.num_blocks, shape.block_size * shape.head_dim)
        return KvBlocks("sdpa", self.kv.view(pieces), 2)

    def plan(self, rows: list[Row]) -> "SdpaPlan":
        """Plan a step. Single-token rows are attended together, short extends padded, long ones alone."""
        offsets = [0]
        for row in rows:
            offsets.append(offsets[-1] + row.length)
        if offsets[-1] == len(rows):
            return self._plan_decode(rows)
        single: list[int] = []
        short: list[int] = []
        long: list[int] = []
        for index, row in enumerate(rows):
            (single if row.length == 1 else short if row.length <= _LONGEST_PADDED else long).append(index)
        parts = [part for part in (single, short, *([index] for index in long)) if part]
        groups = [
            self._group([rows[index] for index in part], [offsets[index] for index in part] if parts[1:] else None)
            for part in parts
        ]
        return SdpaPlan(self, self._placed(self._slots_written(rows)), groups)

    def _plan_decode(self, rows: list[Row]) -> "SdpaPlan":
        """A step of single tokens, the most frequent one, planned with as few tensors as it takes."""
        block_size = self.shape.block_size
        table_rows = [row.slot for row in rows]
        written = [
            self._blocks[row.slot][row.start // block_size] * block_size + row.start % block_size for row in rows
        ]
        windows = [self._max_length - row.end for row in rows]
        slots, written_slots, window_of = torch.tensor([table_rows, written, windows]).unbind()
        num_keys = max(row.end for row in rows)
        mask = self._windows(window_of, num_keys).view(-1, 1, 1, num_keys) if len(rows) > 1 else None
        group = _Group(len(rows), 1, num_keys, None, None, self._pieces(slots, num_keys), mask)
        return SdpaPlan(self, self._placed(written_slots), [group])

    def _placed(self, numbers: Tensor) -> Tensor:
        """Numbers of the host, on the device. On the CPU without a call, as this is done several times a step."""
        return numbers if self._is_host else upload_tensor(numbers, self.device)

    def _windows(self, first: Tensor, num_keys: int) -> Tensor:
        """Masks [*first.shape, keys] of the windows of `_reach` that begin at these places, which are the host's."""
        return self._reach.unfold(0, num_keys, 1)[self._placed(first)]

    def _pieces(self, slots: Tensor, num_keys: int) -> Tensor:
        """The pieces of KV that hold the first `num_keys` keys and values of these slots, int64, end to end."""
        blocks = self._block_table[slots, : -(-num_keys // self.shape.block_size)]
        return self._placed((blocks.view(1, len(slots), 1, -1) + self._head_offsets).view(-1))

    def _slots_written(self, rows: list[Row]) -> Tensor:
        """Slots of all new tokens, int64 [tokens], on the host."""
        table_rows = torch.tensor([row.slot for row in rows]).repeat_interleave(
            torch.tensor([row.length for row in rows])
        )
        positions = torch.cat([torch.arange(row.start, row.end) for row in rows])
        block_size = self.shape.block_size
        blocks = self._block_table[table_rows, positions // block_size]
        return blocks.mul_(block_size).add_(positions % block_size)

    def _group(self, rows: list[Row], offsets: list[int] | None) -> "_Group":
        """Rows to attend together. `offsets`: where each one's tokens begin; None where the rows are the whole step."""
        longest = max(row.length for row in rows)
        num_keys = max(row.end for row in rows)
        read = self._pieces(torch.tensor([row.slot for row in rows]), num_keys)
        starts = torch.tensor([row.start for row in rows]).view(-1, 1)
        local = torch.arange(longest)
        mask = None
        if longest > 1 or len(rows) > 1:
            mask = self._windows(self._max_length - 1 - starts - local, num_keys).unsqueeze(1)
        if offsets is None and all(row.length == longest for row in rows):
            return _Group(len(rows), longest, num_keys, None, None, read, mask)
        if offsets is None:
            offsets = [0]
            for row in rows:
                offsets.append(offsets[-1] + row.length)
            offsets.pop()
        tokens = torch.tensor(offsets).view(-1, 1) + local
        valid = local < torch.tensor([row.length for row in rows]).view(-1, 1)
        padded = torch.where(valid, tokens, tokens[:, :1]).view(-1)
        # Looked for on the host: how many there are would have to be waited for elsewhere.
        kept = valid.view(-1).nonzero().view(-1)
        return _Group(len(rows), longest, num_keys, self._placed(padded), self._placed(kept), read, mask)


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that are attended in one call, padded to the longest."""

    num_rows: int
    length: int
    """Queries of each row, padding included."""
    num_keys: int
    tokens: Tensor | None
    """int64 [rows * length]: packed token of each padded query; None where all tokens are here in order."""
    valid: Tensor | None
    """int64: those places of `tokens` that are no padding; None as above."""
    read: Tensor
    """int64 [2 * rows * kv_heads * blocks]: the pieces of KV that are read."""
    mask: Tensor | None
    """[rows, 1, length, keys]: 0 or -inf; None where nothing is hidden."""


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    """One step's reads and writes."""

    backend: SdpaBackend
    written: Tensor
    groups: list[_Group]

    def attend(self, layer: int, query: Tensor, key_value: Tensor, scaling: float) -> Tensor:
        """See `Plan.attend`."""
        self.backend.kv[layer].index_copy_(1, self.written, key_value.transpose(0, 1))
        first = self.groups[0]
        if first.tokens is None:
            return self._attend_group(layer, first, query, scaling)
        out = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
        for group in self.groups:
            if group.tokens is not None and group.valid is not None:
                attended = self._attend_group(layer, group, query.index_select(0, group.tokens), scaling)
                out.index_copy_(0, group.tokens[group.valid], attended.index_select(0, group.valid))
        return out

    def _attend_group(self, layer: int, group: _Group, query: Tensor, scaling: float) -> Tensor:
        """[rows * length, heads * head_dim] from the queries [rows * length, heads, head_dim] of a group."""
        shape = self.backend.shape
        rows, length, kv_heads, width = group.num_rows, group.length, shape.num_kv_heads, shape.head_dim
        read = self.backend.blocks_of[layer].index_select(0, group.read).view(2, rows, kv_heads, -1, width)
        keys, values = read[0, :, :, : group.num_keys], read[1, :, :, : group.num_keys]
        if length == 1:
            queries = query.reshape(rows, kv_heads, -1, width)
            attended = scaled_dot_product_attention(queries, keys, values, attn_mask=group.mask, scale=scaling)
            # Some of torch's kernels for GPUs lay it out by query first.
            return attended.reshape(rows, -1)
        grouped = query.view(rows, length, kv_heads, -1, width).permute(0, 2, 3, 1, 4)
        heads_per_kv = grouped.shape[2]
        mask = group.mask if group.mask is None or heads_per_kv == 1 else group.mask.repeat(1, 1, heads_per_kv, 1)
        queries = grouped.reshape(rows, kv_heads, heads_per_kv * length, width)
        attended = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scaling)
        by_token = attended.view(rows, kv_heads, heads_per_kv, length, width).permute(0, 3, 1, 2, 4)
        return by_token.reshape(rows * length, -1)

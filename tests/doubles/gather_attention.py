"""Paged attention that can be recorded anywhere: each token gathers all keys that there may be, and masks most."""

import torch
from allroads.engine.attention import KvShape, Row
from allroads.engine.kv_blocks import KvBlocks
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NEVER = float("-inf")


class GatherBackend:
    """KV as [layers, blocks + 1, block_size, 2 * kv_heads, head_dim]; padding is stored in the last block."""

    def __init__(
        self,
        shape: KvShape,
        *,
        num_slots: int,
        max_blocks: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        self.shape = shape
        self.device = device or torch.device("cpu")
        self.spare = shape.num_blocks * shape.block_size
        """Index of the key that padding writes and reads."""
        self.max_keys = max_blocks * shape.block_size
        self.kv = torch.zeros(
            (shape.num_layers, shape.num_blocks + 1, shape.block_size, 2 * shape.num_kv_heads, shape.head_dim),
            dtype=dtype,
            device=device,
        )
        self.keys = self.kv.flatten(1, 2)
        self.blocks: list[list[int]] = [[] for _ in range(num_slots)]

    def assign(self, slot: int, blocks: list[int]) -> None:
        """See `AttentionBackend.assign`."""
        self.blocks[slot] = list(blocks)

    def clear(self, blocks: list[int]) -> None:
        """See `AttentionBackend.clear`."""
        self.kv[:, blocks] = 0

    def kv_blocks(self) -> KvBlocks:
        """See `AttentionBackend.kv_blocks`."""
        return KvBlocks("gather", self.kv, 1)

    def plan(self, rows: list[Row]) -> "GatherPlan":
        """See `AttentionBackend.plan`."""
        plan = GatherPlan(self, len(rows), sum(row.length for row in rows))
        plan.fill(rows)
        return plan

    def fixed_plan(self, num_rows: int, num_tokens: int) -> "GatherPlan":
        """See `FixedPlanBackend.fixed_plan`."""
        return GatherPlan(self, num_rows, num_tokens)

    def places(self, slot: int, count: int) -> list[int]:
        """Indices of the first keys of a sequence."""
        size = self.shape.block_size
        return [self.blocks[slot][index // size] * size + index % size for index in range(count)]


class GatherPlan:
    """Reads and writes of each token of a pass; those of padding touch the spare block alone."""

    def __init__(self, backend: GatherBackend, num_rows: int, num_tokens: int) -> None:
        self._backend = backend
        self._num_rows, self._num_tokens = num_rows, num_tokens
        device = backend.device
        self._written = torch.full((num_tokens,), backend.spare, device=device)
        self._read = torch.full((num_tokens, backend.max_keys), backend.spare, device=device)
        # Numbers and no truth values, of which torch makes numbers in a way that CUDA may not record.
        self._mask = torch.full((num_tokens, 1, 1, backend.max_keys), NEVER, dtype=backend.kv.dtype, device=device)
        self._mask[..., 0] = 0

    def fill(self, rows: list[Row]) -> None:
        """See `FixedPlan.fill`."""
        spare, most = self._backend.spare, self._backend.max_keys
        assert len(rows) <= self._num_rows
        assert sum(row.length for row in rows) <= self._num_tokens
        assert self._num_rows != self._num_tokens or all(row.length == 1 for row in rows)
        written, read, counts = [], [], []
        for row in rows:
            places = self._backend.places(row.slot, row.end)
            for position in range(row.start, row.end):
                written.append(places[position])
                # What is masked still counts as 0 x value, which must not be 0 x NaN: a key of its own.
                read.append(places[: position + 1] + [places[position]] * (most - position - 1))
                counts.append(position + 1)
        missing = self._num_tokens - len(written)
        self._written.copy_(torch.tensor(written + [spare] * missing))
        self._read.copy_(torch.tensor(read + [[spare] * most] * missing))
        is_hidden = torch.arange(most) >= torch.tensor(counts + [1] * missing)[:, None]
        self._mask.copy_(torch.zeros(is_hidden.shape).masked_fill(is_hidden, NEVER)[:, None, None])

    def attend(self, layer: int, query: Tensor, key_value: Tensor, scaling: float) -> Tensor:
        """See `Plan.attend`."""
        kv, num_heads = self._backend.keys[layer], self._backend.shape.num_kv_heads
        kv.index_copy_(0, self._written, key_value)
        read = kv.index_select(0, self._read.view(-1)).view(*self._read.shape, *kv.shape[1:])
        keys, values = read.split(num_heads, dim=2)
        attended = scaled_dot_product_attention(
            query.unsqueeze(2), keys.transpose(1, 2), values.transpose(1, 2), self._mask, scale=scaling, enable_gqa=True
        )
        return attended.squeeze(2).reshape(query.shape[0], -1)

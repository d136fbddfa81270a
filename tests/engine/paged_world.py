"""Sequences that are attended in any order, with the keys and values that each must see."""

import random

import torch
from allroads.engine.attention import AttentionBackend, FixedPlan, KvShape, Row
from torch import Tensor


class PagedWorld:
    """Steps of random rows over slots whose blocks change hands, and what attention over them is by definition."""

    def __init__(
        self, shape: KvShape, rng: random.Random, *, num_slots: int, max_blocks: int, dtype: torch.dtype
    ) -> None:
        self.shape, self.rng, self.dtype = shape, rng, dtype
        self.max_blocks = max_blocks
        self.room = max_blocks * shape.block_size
        self.generator = torch.Generator().manual_seed(rng.randrange(2**31))
        self.free = list(range(shape.num_blocks))
        rng.shuffle(self.free)
        self.blocks: list[list[int]] = [[] for _ in range(num_slots)]
        self.used: set[int] = set()
        # [layers, 2 * kv_heads, tokens, head_dim] of each slot.
        self.history: list[Tensor] = [self._empty() for _ in range(num_slots)]

    def _empty(self) -> Tensor:
        shape = self.shape
        return torch.empty((shape.num_layers, 2 * shape.num_kv_heads, 0, shape.head_dim), dtype=self.dtype)

    def change(self) -> None:
        """Some sequences end, and some are rewound."""
        for slot, history in enumerate(self.history):
            chance = self.rng.random()
            if chance < 0.15:
                self.free += self.blocks[slot]
                self.rng.shuffle(self.free)
                self.blocks[slot], self.history[slot] = [], self._empty()
            elif chance < 0.4 and history.shape[2]:
                self.history[slot] = history[:, :, : self.rng.randrange(history.shape[2])]

    def rows(self, lengths: list[int], *backends: AttentionBackend) -> list[Row]:
        """Rows of so many new tokens each, or fewer where there is no room, in random slots; blocks are assigned."""
        rows: list[Row] = []
        for slot, length in zip(self.rng.sample(range(len(self.blocks)), len(lengths)), lengths, strict=True):
            start, block_size = self.history[slot].shape[2], self.shape.block_size
            end = min(start + length, self.room, (len(self.blocks[slot]) + len(self.free)) * block_size)
            if end == start:
                continue
            while len(self.blocks[slot]) * block_size < end:
                self.blocks[slot].append(self.free.pop())
                self.used.add(self.blocks[slot][-1])
            for backend in backends:
                backend.assign(slot, self.blocks[slot])
            rows.append(Row(slot, start, end))
        return rows

    def tokens(self, count: int) -> tuple[Tensor, Tensor]:
        """Queries [layers, tokens, heads, head_dim] and keys with values [layers, tokens, 2 * kv_heads, head_dim]."""
        shape = self.shape
        heads = shape.num_heads + 2 * shape.num_kv_heads
        qkv = torch.randn((shape.num_layers, count, heads, shape.head_dim), generator=self.generator).to(self.dtype)
        return qkv[:, :, : shape.num_heads], qkv[:, :, shape.num_heads :]

    def expected(self, rows: list[Row], queries: Tensor, key_values: Tensor) -> Tensor:
        """[layers, tokens, heads * head_dim] in float32, token by token; remembers the new keys and values."""
        shape = self.shape
        group, found, begin = shape.num_heads // shape.num_kv_heads, [], 0
        for row in rows:
            new = key_values[:, begin : begin + row.length].transpose(1, 2)
            self.history[row.slot] = torch.cat((self.history[row.slot], new), dim=2)
            keys, values = self.history[row.slot].float().repeat_interleave(group, 1).chunk(2, dim=1)
            for position in range(row.start, row.end):
                query = queries[:, begin + position - row.start].float().unsqueeze(2)
                seen = slice(position + 1)
                weights = (query @ keys[:, :, seen].transpose(2, 3) * shape.head_dim**-0.5).softmax(-1)
                found.append((weights @ values[:, :, seen]).flatten(1))
            begin += row.length
        return torch.stack(found, dim=1)


def attended(
    backend: AttentionBackend, rows: list[Row], queries: Tensor, key_values: Tensor, device: torch.device
) -> Tensor:
    """What a backend says of a step, all layers, on the CPU."""
    plan = backend.plan(rows)
    scaling = queries.shape[-1] ** -0.5
    layers = [
        plan.attend(layer, queries[layer].to(device), key_values[layer].to(device), scaling)
        for layer in range(len(queries))
    ]
    return torch.stack(layers).float().cpu()


def attended_in_place(
    plan: FixedPlan, num_tokens: int, rows: list[Row], queries: Tensor, key_values: Tensor, device: torch.device
) -> Tensor:
    """The same by a fixed plan, whose padding is NaN."""
    plan.fill(rows)
    count, scaling = queries.shape[1], queries.shape[-1] ** -0.5

    def padded(numbers: Tensor) -> Tensor:
        whole = numbers.new_full((num_tokens, *numbers.shape[1:]), float("nan"))
        whole[:count] = numbers
        return whole.to(device)

    layers = [
        plan.attend(layer, padded(queries[layer]), padded(key_values[layer]), scaling)[:count]
        for layer in range(len(queries))
    ]
    return torch.stack(layers).float().cpu()

"""Attention over paged KV, behind one small interface that a backend for each kind of device implements.

A step packs the new tokens of all rows into one sequence. `plan` works out once, for all layers, where the
new keys and values go and which cached ones each row reads.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from .kv_blocks import KvBlocks

ATTENTION_NAME = "allroads_paged"
"""Value of `attn_implementation` with which models are loaded."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a step: tokens [start, end) of the sequence at `slot` of the block table."""

    slot: int
    start: int
    end: int
    num_outputs: int = 1
    """For how many of the last of these tokens logits are wanted."""

    @property
    def length(self) -> int:
        """New tokens."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class KvShape:
    """What KV of one model takes."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int
    block_size: int
    num_heads: int
    """Of queries, which share the KV heads evenly."""


class Plan(Protocol):
    """What one step's attention needs, worked out by a backend."""

    def attend(self, layer: int, query: Tensor, key_value: Tensor, scaling: float) -> Tensor:
        """Store the new keys and values, attend, and return [tokens, heads * head_dim].

        Args:
            layer: index of the layer.
            query: [tokens, heads, head_dim], RoPE applied.
            key_value: [tokens, 2 * kv_heads, head_dim]: keys of all heads, RoPE applied, then values. Any strides.
            scaling: factor for the scores.
        """
        ...


class AttentionBackend(Protocol):
    """Owns the KV memory of one model and plans its steps."""

    def assign(self, slot: int, blocks: list[int]) -> None:
        """Let a slot of the block table stand for these blocks."""
        ...

    def plan(self, rows: list[Row]) -> Plan:
        """Plan a step whose packed tokens are those of the rows, in order."""
        ...

    def clear(self, blocks: list[int]) -> None:
        """Overwrite what blocks hold, so that NaN in them cannot reach the next who gets them."""
        ...

    def kv_blocks(self) -> KvBlocks:
        """The memory that it owns, block by block."""
        ...


class FixedPlan(Plan, Protocol):
    """A plan whose tensors stay where they are, so that a pass that was recorded with it can be replayed for others."""

    def fill(self, rows: list[Row]) -> None:
        """Plan a step of these rows in place.

        There may be fewer of them, or of their tokens, than the plan was made for. Tokens of the pass beyond theirs
        are padding: what is attended for these means nothing, and what is stored of them touches no block of a row.

        Args:
            rows: rows of the step, whose packed tokens are the first of the pass.
        """
        ...


class FixedPlanBackend(AttentionBackend, Protocol):
    """A backend that can be recorded."""

    def fixed_plan(self, num_rows: int, num_tokens: int) -> FixedPlan:
        """A plan for steps of up to so many rows and tokens, filled so that a pass can be run at once.

        Where both numbers are equal each row has one token. Only the tokens' number is the pass's own.
        """
        ...


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
    """The function that transformers calls in each layer; the plan travels through the model as a keyword.

    query: [1, heads, tokens, head_dim]; key and value: [1, kv_heads, tokens, head_dim].
    """
    packed = query[0].transpose(0, 1)
    key_value = torch.cat((key[0], value[0])).transpose(0, 1)
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    attended = plan.attend(module.layer_idx, packed, key_value, factor)  # type: ignore[arg-type]
    return attended.view(1, *packed.shape), None


# No mask function is registered under the name, so transformers builds no mask: causality is the plan's.
AttentionInterface.register(ATTENTION_NAME, _paged_attention)

"""Paged attention by flashinfer, for CUDA: nothing of a step is waited for."""

import math

import torch
from torch import Tensor

from ..cuda.staging import CopyGuard
from ..cuda.upload import upload
from ..errors import StartupError
from .attention import KvShape, Row
from .flashinfer_tiles import invariant_rows, workspace_bytes
from .flashinfer_wrappers import (
    Attention,
    DecodeAttention,
    Facts,
    FixedBuffers,
    Kinds,
    PrefillAttention,
    load_flashinfer,
)
from .kv_blocks import Allocate, KvBlocks, zeros
from .page_table import BlockTable, PageTable

_INVARIANT_WORKSPACE_BYTES = 1 << 20
"""Where no text is cut into parts nothing is ever written there."""


class FlashInferBackend:
    """KV as [layers, blocks + 1, 2, block_size, kv_heads, head_dim]: a block of a layer is keys, then values.

    The block after the last is scratch: padding reads and writes it, and nobody else. All steps of a backend run one
    after the other, since they share memory for partial results, and a plan is good until the next one.
    """

    def __init__(
        self,
        shape: KvShape,
        *,
        num_slots: int,
        max_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        batch_invariant: bool = False,
        allocate: Allocate = zeros,
        kinds: Kinds | None = None,
    ) -> None:
        """Takes `workspace_bytes` and 16 MiB besides the KV.

        Args:
            shape: of the KV pool.
            num_slots: sequences that hold KV at once.
            max_blocks: blocks that one of them can have.
            dtype: of queries, keys and values.
            device: of all tensors.
            batch_invariant: whether a row is computed alike in any company.
            allocate: gives the memory of the KV.
            kinds: None for flashinfer's own.
        """
        self.shape = shape
        self.max_blocks = max_blocks
        kv_shape = (shape.num_layers, shape.num_blocks + 1, 2, shape.block_size, shape.num_kv_heads, shape.head_dim)
        self.kv = allocate(kv_shape, dtype, device)
        self._places_of = self.kv.view(shape.num_layers, -1, shape.num_kv_heads, shape.head_dim)
        self.facts = Facts(
            kinds=load_flashinfer() if kinds is None else kinds,
            shape=shape,
            dtype=dtype,
            device=device,
            scaling=shape.head_dim**-0.5,
            batch_invariant=batch_invariant,
        )
        self._table = BlockTable(num_slots, max_blocks)
        # One for all plans: a wrapper cannot be planned again before its own copies are made, either.
        self.pages = PageTable(self._table, block_size=shape.block_size, scratch=shape.num_blocks, device=device)
        self.guard = CopyGuard(device)
        self._workspace = torch.empty(0, dtype=torch.uint8, device=device)
        workspace = self.workspace_for()
        self._prefill = PrefillAttention(self.facts, workspace)
        self._decode: Attention = self._prefill if batch_invariant else DecodeAttention(self.facts, workspace)

    def assign(self, slot: int, blocks: list[int]) -> None:
        """See `AttentionBackend.assign`."""
        self._table.assign(slot, blocks)

    def clear(self, blocks: list[int]) -> None:
        """See `AttentionBackend.clear`."""
        self.kv.index_fill_(1, upload(blocks, self.facts.device, torch.int64), 0)

    def kv_blocks(self) -> KvBlocks:
        """See `AttentionBackend.kv_blocks`."""
        return KvBlocks("flashinfer", self.kv, 1)

    def plan(self, rows: list[Row]) -> "FlashInferPlan":
        """See `AttentionBackend.plan`. Rows of one token each have kernels of their own; all others go together."""
        num_rows, num_tokens = len(rows), sum(row.length for row in rows)
        attention = self._decode if num_tokens == num_rows else self._prefill
        if self.facts.batch_invariant:
            num_rows = invariant_rows(num_rows, num_tokens, self.facts.group, is_fixed=False)
        with self.guard:
            self.pages.fill(rows, num_rows)
            attention.plan(self.pages)
            places = self.pages.places.to(self.kv.device, non_blocking=True, copy=True)
        return FlashInferPlan(self, attention, places)

    def fixed_plan(self, num_rows: int, num_tokens: int) -> "FixedFlashInferPlan":
        """See `FixedPlanBackend.fixed_plan`. With the largest first one workspace does for all."""
        return FixedFlashInferPlan(self, num_rows, num_tokens)

    def workspace_for(self, num_rows: int = 0, num_tokens: int = 0) -> Tensor:
        """Memory for the partial results of a fixed shape, or of all steps of no fixed shape.

        It is the one that there is, or a larger one; whoever has the old one keeps it.
        """
        needed = _INVARIANT_WORKSPACE_BYTES
        if not self.facts.batch_invariant:
            needed = workspace_bytes(self.shape, _num_multiprocessors(self.facts.device), num_rows, num_tokens)
        if needed > self._workspace.nbytes:
            # flashinfer wants zeros at first.
            self._workspace = torch.zeros(needed, dtype=torch.uint8, device=self.facts.device)
        return self._workspace

    def attend(
        self, attention: Attention, places: Tensor, layer: int, query: Tensor, key_value: Tensor, scaling: float
    ) -> Tensor:
        """See `Plan.attend`, with what was planned.

        Args:
            attention: planned for the step.
            places: int64 [tokens, 2], where keys and values go.
            layer: as there.
            query: as there.
            key_value: as there.
            scaling: as there.

        Raises:
            StartupError: it is not the factor that was planned with.
        """
        if not math.isclose(scaling, self.facts.scaling, rel_tol=1e-6):
            raise StartupError(
                f"this model scales attention by {scaling:g}, and flashinfer was planned for {self.facts.scaling:g}, "
                f'as is usual for heads of {self.shape.head_dim}; set attention to "sdpa"',
                field="attention",
            )
        # With an index of this shape it takes keys and values from wherever the projection left them, in one kernel.
        self._places_of[layer].index_put_((places,), key_value.unflatten(1, (2, self.shape.num_kv_heads)))
        out = query.new_empty(query.shape)
        attention.run(query, self.kv[layer], out)
        return out.view(len(out), -1)


class FlashInferPlan:
    """One step's reads and writes."""

    def __init__(self, backend: FlashInferBackend, attention: Attention, places: Tensor) -> None:
        self._backend = backend
        self._attention = attention
        self._places = places

    def attend(self, layer: int, query: Tensor, key_value: Tensor, scaling: float) -> Tensor:
        """See `Plan.attend`."""
        return self._backend.attend(self._attention, self._places, layer, query, key_value, scaling)


class FixedFlashInferPlan:
    """A shape's reads and writes.

    The kernels are the same ones for all steps, and their page table is always in the same place. Where rows
    may have several tokens there is one row more, to which the tokens that are padding belong.
    """

    def __init__(self, backend: FlashInferBackend, num_rows: int, num_tokens: int) -> None:
        facts, shape = backend.facts, backend.shape
        self._backend = backend
        self._is_single = num_rows == num_tokens
        self._num_tokens = num_tokens
        self._num_rows = num_rows if self._is_single else num_rows + 1
        if facts.batch_invariant:
            self._num_rows = invariant_rows(self._num_rows, num_tokens, facts.group, is_fixed=True)
        num_pages = num_rows * backend.max_blocks + -(-num_tokens // shape.block_size)
        kind = DecodeAttention if self._is_single and not facts.batch_invariant else PrefillAttention
        self._attention: Attention = kind(
            facts,
            backend.workspace_for(self._num_rows, num_tokens),
            FixedBuffers(self._num_rows, num_pages, facts.device),
        )
        self._places = torch.zeros((num_tokens, 2), dtype=torch.int64, device=facts.device)
        # The first plan of a wrapper says how many tokens there can be; padding makes them as many in each.
        self.fill([])

    def fill(self, rows: list[Row]) -> None:
        """See `FixedPlan.fill`.

        Raises:
            Internal: there are more rows, or tokens, than the plan was made for.
        """
        pages = self._backend.pages
        with self._backend.guard:
            if self._is_single:
                pages.fill_single(rows, self._num_rows)
            else:
                pages.fill(rows, self._num_rows, self._num_tokens)
            self._attention.plan(pages)
            self._places.copy_(pages.places, non_blocking=True)

    def attend(self, layer: int, query: Tensor, key_value: Tensor, scaling: float) -> Tensor:
        """See `Plan.attend`."""
        return self._backend.attend(self._attention, self._places, layer, query, key_value, scaling)


def _num_multiprocessors(device: torch.device) -> int:
    """Of a GPU; any number does where there is none, for nothing is cut into parts there."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1

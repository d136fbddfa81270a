"""flashinfer's two ways to attend over a page table, planned once for all layers of a step.

What its sources say, and what this relies on (0.5.3 and 0.6.13):

- `plan` reads the host's `indptr` and writes its schedule into page-locked memory of the wrapper, from where it copies
  without waiting. So the wrapper must not be planned again before that copy is made.
- Made for graphs, a wrapper copies what it is given into the buffers that it was made with, without waiting where
  that lies in page-locked memory; but the pages' indices it would wait for, unless they lie on the device already.
  Those it finds to be the very buffer, and copies nothing.
- Made for graphs, its kernels, grids and places in the workspace depend on the number of rows and the largest number of
  tokens alone, which is that of its first plan.
- Where no text may be cut, kernels for graphs run over places of the schedule that no plan has written, and take what
  is there for a row's number (flashinfer issue 4002). 0 is a row that there is, and so is what an earlier plan left:
  its results are computed twice.
- Partial results lie in the float workspace from a `run` to its end. So wrappers that work on one stream, one after
  the other, can share it.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..cuda.flashinfer_kernels import PREFILL_BACKEND, KernelShape
from .attention import KvShape
from .page_table import PageTable

_LAYOUT = "NHD"
_FIXED_INT_BYTES = 1 << 20
"""What a wrapper of fixed shape needs for its schedule, and far more: 13 bytes for each tile of queries."""
_NO_LENGTHS = torch.ones(1, dtype=torch.int32)
"""Lengths of rows, which these kernels do not read. Not given, `plan` would work them out and look for the longest in
Python, which takes microseconds a row."""


class Kinds(Protocol):
    """What is used of flashinfer."""

    BatchDecodeWithPagedKVCacheWrapper: Any
    BatchPrefillWithPagedKVCacheWrapper: Any


@dataclass(frozen=True, slots=True)
class Facts:
    """What all wrappers of a model have in common."""

    kinds: Kinds
    shape: KvShape
    dtype: torch.dtype
    device: torch.device
    scaling: float
    """Factor for the scores, of all layers."""
    batch_invariant: bool

    @property
    def kernels(self) -> KernelShape:
        """What its kernels are made for."""
        shape = self.shape
        return KernelShape(self.dtype, shape.head_dim, self.group, self.batch_invariant)

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.shape.num_heads // self.shape.num_kv_heads


def load_flashinfer() -> Kinds:
    """The real ones. Imported late: it takes seconds, and only a GPU has use for it."""
    import flashinfer as kinds  # noqa: PLC0415

    real: Kinds = kinds
    return real


class FixedBuffers:
    """Where recorded kernels find their page table, int32 on the device."""

    def __init__(self, num_rows: int, num_pages: int, device: torch.device) -> None:
        """`num_pages`: as many as the rows can ever have together."""

        def buffer(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self.qo_indptr, self.kv_indptr = buffer(num_rows + 1), buffer(num_rows + 1)
        self.last_page_len, self.indices = buffer(num_rows), buffer(num_pages)

    def upload(self, indices: Tensor) -> Tensor:
        """Copy pages' indices here without waiting, and give back where they are."""
        place = self.indices[: len(indices)]
        place.copy_(indices, non_blocking=True)
        return place


class Attention(Protocol):
    """A wrapper, planned for one step after the other."""

    def plan(self, table: PageTable) -> None:
        """Plan a step. Copies of the table are on their way when it returns."""
        ...

    def run(self, query: Tensor, layer_kv: Tensor, out: Tensor) -> None:
        """Attend.

        Args:
            query: [tokens, heads, head_dim], the last dimension dense.
            layer_kv: [blocks, 2, block_size, kv_heads, head_dim].
            out: [tokens, heads, head_dim], written.
        """
        ...


class DecodeAttention:
    """For steps of one token a row, each of which has a page at least. Not batch-invariant: it parts long texts."""

    def __init__(self, facts: Facts, workspace: Tensor, fixed: FixedBuffers | None = None) -> None:
        self._facts = facts
        self._fixed = fixed
        # On tensor cores it runs the kernels of extends: a group of heads is to them as good as several tokens.
        self._wrapper = facts.kinds.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            _LAYOUT,
            use_cuda_graph=fixed is not None,
            use_tensor_cores=not facts.kernels.decodes_on_cores,
            paged_kv_indptr_buffer=None if fixed is None else fixed.kv_indptr,
            paged_kv_indices_buffer=None if fixed is None else fixed.indices,
            paged_kv_last_page_len_buffer=None if fixed is None else fixed.last_page_len,
            backend=PREFILL_BACKEND,
        )
        _shrink(self._wrapper, workspace, fixed)

    def plan(self, table: PageTable) -> None:
        """See `Attention.plan`."""
        shape, dtype = self._facts.shape, self._facts.dtype
        self._wrapper.plan(
            table.kv_indptr,
            table.indices if self._fixed is None else self._fixed.upload(table.indices),
            table.last_page_len,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.block_size,
            q_data_type=dtype,
            kv_data_type=dtype,
            sm_scale=self._facts.scaling,
            non_blocking=True,
            seq_lens=_NO_LENGTHS,
        )

    def run(self, query: Tensor, layer_kv: Tensor, out: Tensor) -> None:
        """See `Attention.run`."""
        self._wrapper.run(query, layer_kv, out=out)


class PrefillAttention:
    """For steps of any rows: a new token sees all that are before it, and itself."""

    def __init__(self, facts: Facts, workspace: Tensor, fixed: FixedBuffers | None = None) -> None:
        self._facts = facts
        self._fixed = fixed
        self._wrapper = facts.kinds.BatchPrefillWithPagedKVCacheWrapper(
            workspace,
            _LAYOUT,
            use_cuda_graph=fixed is not None,
            qo_indptr_buf=None if fixed is None else fixed.qo_indptr,
            paged_kv_indptr_buf=None if fixed is None else fixed.kv_indptr,
            paged_kv_indices_buf=None if fixed is None else fixed.indices,
            paged_kv_last_page_len_buf=None if fixed is None else fixed.last_page_len,
            backend=PREFILL_BACKEND,
        )
        _shrink(self._wrapper, workspace, fixed)

    def plan(self, table: PageTable) -> None:
        """See `Attention.plan`."""
        shape, dtype = self._facts.shape, self._facts.dtype
        self._wrapper.plan(
            table.qo_indptr,
            table.kv_indptr,
            table.indices if self._fixed is None else self._fixed.upload(table.indices),
            table.last_page_len,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.block_size,
            causal=True,
            sm_scale=self._facts.scaling,
            q_data_type=dtype,
            kv_data_type=dtype,
            non_blocking=True,
            seq_lens=_NO_LENGTHS,
            disable_split_kv=self._facts.batch_invariant,
        )

    def run(self, query: Tensor, layer_kv: Tensor, out: Tensor) -> None:
        """See `Attention.run`."""
        self._wrapper.run(query, layer_kv, out=out)


def _shrink(wrapper: Any, workspace: Tensor, fixed: FixedBuffers | None) -> None:
    """Give back most of the 8 MiB, on the device and page-locked, that a wrapper takes for its schedule.

    The rest is cleared. One whose shape is not fixed keeps them, for it may have any number of tiles.
    """
    if fixed is not None:
        small = torch.empty(_FIXED_INT_BYTES, dtype=torch.uint8, device=workspace.device)
        wrapper.reset_workspace_buffer(workspace, small)
        # Of this each plan copies all that it reserves to the device. It may have been used by others before.
        wrapper._pin_memory_int_workspace_buffer.zero_()

"""flashinfer's two wrappers as dense attention in float32 on the CPU.

They take what the real ones take, and read what those read: the buffers that they were made with, or else copies of
what `plan` was given, and the pages that these name. What belongs to a wrapper of fixed shape stays what it was.
"""

from typing import Any

import torch
from torch import Tensor


class _Wrapper:
    """What both share."""

    def __init__(self, use_cuda_graph: bool, workspace: Tensor) -> None:
        assert workspace.dtype is torch.uint8
        self._is_fixed = use_cuda_graph
        self._buffers: dict[str, Tensor] = {}
        self.tile = 0
        """Queries that the real kernel would take at once."""
        self.num_plans = 0

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor) -> None:
        assert int_workspace_buffer.dtype is torch.uint8
        # Page-locked memory that others may have used before.
        self._pin_memory_int_workspace_buffer = torch.full(int_workspace_buffer.shape, 7, dtype=torch.uint8)

    def _take(self, name: str, given: Tensor) -> None:
        """Into the fixed buffer; or a copy, as on its way to a GPU."""
        assert given.dtype is torch.int32
        assert given.dim() == 1
        if self._is_fixed:
            kept = self._buffers[name]
            if name == "indices":
                assert given.data_ptr() == kept.data_ptr(), "the real one would wait for this copy"
                assert len(given) <= len(kept)
            else:
                assert len(given) == len(kept)
                kept.copy_(given)
        else:
            self._buffers[name] = given.clone()

    def _attend(self, query: Tensor, kv: Tensor, out: Tensor, *, is_causal: bool) -> Tensor:
        qo_indptr, kv_indptr, indices, last = (
            self._buffers[name] for name in ("qo_indptr", "kv_indptr", "indices", "last_page_len")
        )
        assert query.dtype is self._dtype
        assert kv.dtype is self._dtype
        assert query.stride(-1) == 1
        assert out.shape == query.shape
        assert out.is_contiguous()
        assert len(query) == qo_indptr[-1]
        page_size, group = kv.shape[2], query.shape[1] // kv.shape[3]
        out.fill_(float("nan"))
        for row in range(len(last)):
            begin, end = qo_indptr[row : row + 2].tolist()
            first, beyond = kv_indptr[row : row + 2].tolist()
            length = 0 if first == beyond else (beyond - first - 1) * page_size + int(last[row])
            if begin == end:
                continue
            assert length >= end - begin
            pages = indices[first:beyond].tolist()
            # Each page by itself, as the kernel reads them: one that is not there is an error.
            keys, values = (torch.cat([kv[page, part] for page in pages])[:length].float() for part in (0, 1))
            queries = query[begin:end].float().transpose(0, 1)
            scores = queries @ keys.repeat_interleave(group, 1).permute(1, 2, 0) * self._scale
            if is_causal:
                seen = torch.ones(end - begin, length, dtype=torch.bool).tril(length - (end - begin))
                scores = scores.masked_fill(~seen, float("-inf"))
            weighed = scores.softmax(-1) @ values.repeat_interleave(group, 1).transpose(0, 1)
            out[begin:end] = weighed.transpose(0, 1).to(out.dtype)
        return out

    def _planned(self, head_dim: int, sm_scale: float | None, dtype: Any, group: int, num_tokens: int) -> None:
        self._scale = head_dim**-0.5 if sm_scale is None else sm_scale
        self._dtype = dtype
        self.num_plans += 1
        num_rows = len(self._buffers["last_page_len"])
        # `PrefillSplitQOKVIndptr` of flashinfer's scheduler.cuh.
        queries = (num_tokens - num_rows + 1) if self._is_fixed else num_tokens
        queries = queries * group if self._is_fixed else queries * group // num_rows
        self.tile = 128 if queries > 64 and head_dim < 256 else 64 if queries > 16 else 16


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
    ) -> None:
        assert kv_layout == "NHD"
        super().__init__(use_cuda_graph, float_workspace_buffer)
        self.use_tensor_cores = use_tensor_cores
        if use_cuda_graph:
            assert paged_kv_indptr_buffer is not None
            assert paged_kv_indices_buffer is not None
            assert paged_kv_last_page_len_buffer is not None
            assert len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1
            self._buffers = {
                "kv_indptr": paged_kv_indptr_buffer,
                "indices": paged_kv_indices_buffer,
                "last_page_len": paged_kv_last_page_len_buffer,
            }

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        o_data_type: Any = None,
        data_type: Any = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: Tensor | None = None,
        seq_lens: Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int = 1,
    ) -> None:
        assert self.use_tensor_cores or num_qo_heads // num_kv_heads in (1, 2, 3, 4, 8)
        self._take("kv_indptr", indptr)
        self._take("indices", indices)
        self._take("last_page_len", last_page_len)
        num_rows = len(last_page_len)
        self._buffers["qo_indptr"] = torch.arange(num_rows + 1, dtype=torch.int32)
        self._planned(head_dim, sm_scale, q_data_type, num_qo_heads // num_kv_heads, num_rows)

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Tensor,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        q_len_per_req: int | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        kv_cache_sf: Any = None,
    ) -> Tensor:
        return self._attend(q, paged_kv_cache, torch.empty_like(q) if out is None else out, is_causal=False)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
    ) -> None:
        assert kv_layout == "NHD"
        super().__init__(use_cuda_graph, float_workspace_buffer)
        self._max_tokens: int | None = None
        self.splits = True
        if use_cuda_graph:
            assert qo_indptr_buf is not None
            assert paged_kv_indptr_buf is not None
            assert paged_kv_indices_buf is not None
            assert paged_kv_last_page_len_buf is not None
            assert len(qo_indptr_buf) == len(paged_kv_indptr_buf) == len(paged_kv_last_page_len_buf) + 1
            self._buffers = {
                "qo_indptr": qo_indptr_buf,
                "kv_indptr": paged_kv_indptr_buf,
                "indices": paged_kv_indices_buf,
                "last_page_len": paged_kv_last_page_len_buf,
            }

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        o_data_type: Any = None,
        non_blocking: bool = True,
        prefix_len_ptr: Tensor | None = None,
        token_pos_in_items_ptr: Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: Tensor | None = None,
        seq_lens: Tensor | None = None,
        seq_lens_q: Tensor | None = None,
        block_tables: Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        num_tokens = int(qo_indptr[-1])
        if self._is_fixed:
            # The first plan says how many tokens there can be; the grid is made for them.
            self._max_tokens = self._max_tokens or num_tokens
            assert num_tokens <= self._max_tokens
            num_tokens = self._max_tokens
        self._take("qo_indptr", qo_indptr)
        self._take("kv_indptr", paged_kv_indptr)
        self._take("indices", paged_kv_indices)
        self._take("last_page_len", paged_kv_last_page_len)
        self._is_causal = causal
        self.splits = not disable_split_kv
        self._planned(head_dim_qk, sm_scale, q_data_type, num_qo_heads // num_kv_heads, num_tokens)

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Tensor,
        *args: Any,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        kv_cache_sf: Any = None,
        skip_softmax_threshold_scale_factor: float | None = None,
    ) -> Tensor:
        return self._attend(q, paged_kv_cache, torch.empty_like(q) if out is None else out, is_causal=self._is_causal)

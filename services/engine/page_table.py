"""The page table of a step, as flashinfer takes it: which pages each row reads, and where its new tokens go.

Pure host logic, on arrays that stay where they are. A page is a block. The KV of a layer is a row of places, one for a
key or a value of all heads: each block holds `block_size` places for keys, then as many for values.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cuda.staging import HostArray
from ..errors import Internal
from .attention import Row


class BlockTable:
    """Which blocks each slot stands for."""

    def __init__(self, num_slots: int, max_blocks: int) -> None:
        self.blocks: NDArray[np.int32] = np.zeros((num_slots, max_blocks), dtype=np.int32)

    def assign(self, slot: int, blocks: Sequence[int]) -> None:
        """Let a slot stand for these blocks."""
        self.blocks[slot, : len(blocks)] = blocks


class PageTable:
    """Rows of a step in CSR form; each tensor is a view of the host array behind it, int32 but for `places`."""

    def __init__(self, table: BlockTable, *, block_size: int, scratch: int, device: torch.device) -> None:
        """`scratch`: a block that is nobody's, for padding. `device`: that to which the arrays will be copied."""
        self._table = table
        self._block_size = block_size
        self._scratch = scratch
        self._qo_indptr, self._kv_indptr, self._last_page_len, self._indices = (
            HostArray(torch.int32, device) for _ in range(4)
        )
        self._places = HostArray(torch.int64, device)
        self.num_rows = 0
        self.num_tokens = 0
        self.num_pages = 0

    @property
    def qo_indptr(self) -> Tensor:
        """[rows + 1]: where each row's new tokens begin among those of the step."""
        return self._qo_indptr.tensor[: self.num_rows + 1]

    @property
    def kv_indptr(self) -> Tensor:
        """[rows + 1]: where each row's pages begin in `indices`."""
        return self._kv_indptr.tensor[: self.num_rows + 1]

    @property
    def indices(self) -> Tensor:
        """[pages]: the rows' pages, end to end."""
        return self._indices.tensor[: self.num_pages]

    @property
    def last_page_len(self) -> Tensor:
        """[rows]: tokens in each row's last page, from 1 to the block size; 0 for a row without pages."""
        return self._last_page_len.tensor[: self.num_rows]

    @property
    def places(self) -> Tensor:
        """[tokens, 2], int64: where each new token's key and value go."""
        return self._places.tensor[: 2 * self.num_tokens].view(-1, 2)

    def fill(self, rows: Sequence[Row], num_rows: int, num_tokens: int | None = None) -> None:
        """Write the table of these rows.

        Args:
            rows: rows of the step.
            num_rows: how many the table has. Those beyond the given ones are padding, and empty: no token, no page.
            num_tokens: how many tokens the pass has; None for those of the rows. Tokens beyond are padding, too, and
                belong to the table's last row, which reads and writes the scratch block as often as it takes.

        Raises:
            Internal: there are more rows or tokens than that, or tokens are padding and no row is.
        """
        starts, ends, slots = _columns(rows)
        lengths, pages = ends - starts, -(-ends // self._block_size)
        taken = int(lengths.sum())
        num_padding = 0 if num_tokens is None else num_tokens - taken
        if num_padding < 0 or len(rows) + (num_padding > 0) > num_rows:
            raise Internal(f"{len(rows)} rows of {taken} tokens do not fit {num_rows} rows and {num_tokens} tokens")
        self._reserve(num_rows, taken + num_padding, int(pages.sum()) - (-num_padding // self._block_size))
        self._write_rows(lengths, pages, ends, slots)
        if num_padding:
            self._qo_indptr.array[num_rows] = self.num_tokens
            self._kv_indptr.array[num_rows] = self.num_pages
            self._last_page_len.array[num_rows - 1] = (num_padding - 1) % self._block_size + 1
        self._write_places(lengths, starts, slots)

    def fill_single(self, rows: Sequence[Row], num_rows: int) -> None:
        """Write the table of rows of one token each, and of padding rows that are one token long, in the scratch block.

        Raises:
            Internal: there are more rows than `num_rows`, or one has more tokens.
        """
        starts, ends, slots = _columns(rows)
        lengths, pages = ends - starts, -(-ends // self._block_size)
        num_padding = num_rows - len(rows)
        if num_padding < 0 or (lengths != 1).any():
            raise Internal(f"{len(rows)} rows of {int(lengths.sum())} tokens are not {num_rows} rows of one at most")
        self._reserve(num_rows, num_rows, int(pages.sum()) + num_padding)
        self._write_rows(lengths, pages, ends, slots)
        steps = np.arange(1, num_padding + 1)
        self._qo_indptr.array[len(rows) + 1 : num_rows + 1] = len(rows) + steps
        self._kv_indptr.array[len(rows) + 1 : num_rows + 1] = int(pages.sum()) + steps
        self._last_page_len.array[len(rows) : num_rows] = 1
        self._write_places(lengths, starts, slots)

    def _reserve(self, num_rows: int, num_tokens: int, num_pages: int) -> None:
        self.num_rows, self.num_tokens, self.num_pages = num_rows, num_tokens, num_pages
        self._qo_indptr.reserve(num_rows + 1)
        self._kv_indptr.reserve(num_rows + 1)
        self._last_page_len.reserve(num_rows)
        self._indices.reserve(num_pages)
        self._places.reserve(2 * num_tokens)

    def _write_rows(self, lengths: NDArray[Any], pages: NDArray[Any], ends: NDArray[Any], slots: NDArray[Any]) -> None:
        """Write all but the places; the rows beyond are empty, and pages beyond are scratch."""
        count = len(lengths)
        for indptr, sizes in ((self._qo_indptr.array, lengths), (self._kv_indptr.array, pages)):
            indptr[0] = 0
            np.cumsum(sizes, dtype=np.int32, out=indptr[1 : count + 1])
            indptr[count + 1 : self.num_rows + 1] = indptr[count]
        self._last_page_len.array[:count] = (ends - 1) % self._block_size + 1
        self._last_page_len.array[count : self.num_rows] = 0
        end = 0
        for slot, num_pages in zip(slots.tolist(), pages.tolist(), strict=True):
            begin, end = end, end + num_pages
            self._indices.array[begin:end] = self._table.blocks[slot, :num_pages]
        self._indices.array[end : self.num_pages] = self._scratch

    def _write_places(self, lengths: NDArray[Any], starts: NDArray[Any], slots: NDArray[Any]) -> None:
        taken, block_size = int(lengths.sum()), self._block_size
        if taken == len(lengths):
            positions, token_slots = starts, slots
        else:
            first_tokens = self._qo_indptr.array[: len(lengths)]
            positions = np.arange(taken) + np.repeat(starts - first_tokens, lengths)
            token_slots = np.repeat(slots, lengths)
        blocks = self._table.blocks[token_slots, positions // block_size].astype(np.int64)
        places = self._places.array[: 2 * self.num_tokens].reshape(-1, 2)
        places[:taken, 0] = 2 * block_size * blocks + positions % block_size
        places[taken:, 0] = 2 * block_size * self._scratch
        places[:, 1] = places[:, 0] + block_size


def _columns(rows: Sequence[Row]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Starts, ends and slots of rows."""
    table = np.array([(row.start, row.end, row.slot) for row in rows], dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]

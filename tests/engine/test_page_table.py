"""The page table says what a naive look at blocks and rows says."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from allroads.cuda.staging import HostArray
from allroads.engine.attention import Row
from allroads.engine.page_table import BlockTable, PageTable
from allroads.errors import Internal
from hypothesis import given
from hypothesis import strategies as st

SCRATCH, MAX_BLOCKS, NUM_SLOTS = 40, 6, 5
CPU = torch.device("cpu")


class Step:
    """Rows of distinct slots, and the blocks of each."""

    def __init__(self, draw: Callable[..., Any], *, is_single: bool) -> None:
        self.block_size = draw(st.integers(1, 5))
        room = MAX_BLOCKS * self.block_size
        self.blocks = [[draw(st.integers(0, SCRATCH - 1)) for _ in range(MAX_BLOCKS)] for _ in range(NUM_SLOTS)]
        slots = draw(st.lists(st.integers(0, NUM_SLOTS - 1), unique=True))
        self.rows = []
        for slot in slots:
            start = draw(st.integers(0, room - 1))
            end = start + 1 if is_single else draw(st.integers(start + 1, room))
            self.rows.append(Row(slot, start, end))
        self.num_tokens = sum(row.length for row in self.rows)

    def table(self) -> PageTable:
        table = BlockTable(NUM_SLOTS, MAX_BLOCKS)
        for slot, blocks in enumerate(self.blocks):
            table.assign(slot, [SCRATCH] * MAX_BLOCKS)
            table.assign(slot, blocks)
        pages = PageTable(table, block_size=self.block_size, scratch=SCRATCH, device=CPU)
        # What an earlier step left there.
        pages.fill([Row(slot, 0, MAX_BLOCKS * self.block_size) for slot in range(NUM_SLOTS)], NUM_SLOTS + 2)
        return pages

    def keys_of(self, row: Row) -> list[tuple[int, int]]:
        """Block and offset of each of a row's keys."""
        return [
            (self.blocks[row.slot][position // self.block_size], position % self.block_size)
            for position in range(row.end)
        ]


def keys_in(pages: PageTable, block_size: int) -> list[list[tuple[int, int]]]:
    """The same of all rows of a table, as a kernel would read it."""
    found = []
    for row in range(pages.num_rows):
        first, beyond = pages.kv_indptr[row : row + 2].tolist()
        last = int(pages.last_page_len[row])
        assert (first == beyond) == (last == 0)
        length = max(0, beyond - first - 1) * block_size + last
        listed = pages.indices[first:beyond].tolist()
        found.append([(listed[index // block_size], index % block_size) for index in range(length)])
    return found


def place(block: int, offset: int, block_size: int) -> list[int]:
    return [2 * block_size * block + offset, 2 * block_size * block + block_size + offset]


def check(pages: PageTable, step: Step) -> None:
    """What is said of the rows that are no padding."""
    count, block_size = len(step.rows), step.block_size
    assert keys_in(pages, block_size)[:count] == [step.keys_of(row) for row in step.rows]
    lengths = pages.qo_indptr.diff().tolist()
    assert pages.qo_indptr[0] == pages.kv_indptr[0] == 0
    assert lengths[:count] == [row.length for row in step.rows]
    assert pages.kv_indptr[-1] == len(pages.indices)
    assert pages.places.tolist()[: step.num_tokens] == [
        place(*key, block_size) for row in step.rows for key in step.keys_of(row)[row.start :]
    ]
    assert pages.places.dtype is torch.int64
    assert {one.dtype for one in (pages.qo_indptr, pages.kv_indptr, pages.indices, pages.last_page_len)} == {
        torch.int32
    }


@given(st.data())
def test_rows_and_padding_rows_without_tokens(data: st.DataObject) -> None:
    step = Step(data.draw, is_single=False)
    num_rows = len(step.rows) + data.draw(st.integers(0, 3))
    pages = step.table()
    pages.fill(step.rows, num_rows)
    check(pages, step)
    assert len(pages.qo_indptr) == len(pages.kv_indptr) == num_rows + 1
    assert len(pages.places) == pages.qo_indptr[-1] == step.num_tokens
    assert keys_in(pages, step.block_size)[len(step.rows) :] == [[]] * (num_rows - len(step.rows))


@given(st.data())
def test_tokens_that_are_padding_belong_to_the_last_row_and_touch_scratch_alone(data: st.DataObject) -> None:
    step = Step(data.draw, is_single=False)
    num_rows, num_padding = len(step.rows) + data.draw(st.integers(1, 3)), data.draw(st.integers(0, 12))
    pages = step.table()
    pages.fill(step.rows, num_rows, step.num_tokens + num_padding)
    check(pages, step)
    assert pages.qo_indptr.diff().tolist()[len(step.rows) :] == [0] * (num_rows - len(step.rows) - 1) + [num_padding]
    # As many keys as tokens, so that each sees one.
    read = keys_in(pages, step.block_size)[len(step.rows) :]
    assert [len(keys) for keys in read] == [0] * (num_rows - len(step.rows) - 1) + [num_padding]
    assert {block for block, _ in read[-1]} <= {SCRATCH}
    assert pages.places.tolist()[step.num_tokens :] == [place(SCRATCH, 0, step.block_size)] * num_padding


@given(st.data())
def test_single_tokens_and_padding_rows_of_one(data: st.DataObject) -> None:
    step = Step(data.draw, is_single=True)
    num_padding = data.draw(st.integers(0, 3))
    pages = step.table()
    pages.fill_single(step.rows, len(step.rows) + num_padding)
    check(pages, step)
    assert pages.qo_indptr.tolist() == list(range(len(step.rows) + num_padding + 1))
    assert keys_in(pages, step.block_size)[len(step.rows) :] == [[(SCRATCH, 0)]] * num_padding
    assert pages.places.tolist()[len(step.rows) :] == [place(SCRATCH, 0, step.block_size)] * num_padding


def test_what_does_not_fit_is_refused() -> None:
    pages = PageTable(BlockTable(2, 2), block_size=4, scratch=9, device=CPU)
    with pytest.raises(Internal, match="2 rows of 3 tokens do not fit 1 rows"):
        pages.fill([Row(0, 0, 2), Row(1, 0, 1)], 1)
    with pytest.raises(Internal, match="do not fit"):
        pages.fill([Row(0, 0, 3)], 2, 2)
    with pytest.raises(Internal, match="do not fit"):
        pages.fill([Row(0, 0, 3)], 1, 4)
    for rows in ([Row(0, 0, 1), Row(1, 0, 1)], [Row(0, 0, 2)]):
        with pytest.raises(Internal, match="are not 1 rows"):
            pages.fill_single(rows, 1)


def test_host_memory_stays_where_it_is_until_it_is_too_small() -> None:
    numbers = HostArray(torch.int32, CPU, 3)
    first = numbers.tensor.data_ptr()
    numbers.array[:3] = [1, 2, 3]
    numbers.reserve(5)
    assert numbers.tensor[:3].tolist() == [1, 2, 3]
    assert numbers.tensor.data_ptr() == first
    numbers.reserve(100)
    numbers.array[99] = 7
    assert numbers.tensor[99] == 7
    assert not numbers.tensor.is_pinned()

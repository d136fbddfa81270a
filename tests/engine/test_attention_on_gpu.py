"""What only a GPU can show: flashinfer's kernels, and torch's, compute what the definition says."""

import random

import pytest
import torch
from allroads.cuda.flashinfer_kernels import KernelShape
from allroads.cuda.flashinfer_use import why_not_flashinfer
from allroads.engine.attention import AttentionBackend, KvShape, Row
from allroads.engine.flashinfer_attention import FlashInferBackend
from allroads.engine.sdpa_attention import SdpaBackend
from torch import Tensor

from .paged_world import PagedWorld, attended, attended_in_place

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # The first of these compiles kernels.
    pytest.mark.timeout(900),
]
GPU = torch.device("cuda", 0)
NUM_SLOTS, MAX_BLOCKS = 8, 8
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}


def kv_shape(group: int, *, num_blocks: int = 64, block_size: int = 16) -> KvShape:
    return KvShape(2, 2, 128, num_blocks, block_size, 2 * group)


def flashinfer_backend(
    shape: KvShape,
    dtype: torch.dtype = torch.bfloat16,
    *,
    batch_invariant: bool = False,
    max_blocks: int = MAX_BLOCKS,
) -> FlashInferBackend:
    kernels = KernelShape(dtype, shape.head_dim, shape.num_heads // shape.num_kv_heads, batch_invariant)
    if reason := why_not_flashinfer(kernels, GPU):
        pytest.skip(reason)
    backend = FlashInferBackend(
        shape,
        num_slots=NUM_SLOTS,
        max_blocks=max_blocks,
        dtype=dtype,
        device=GPU,
        batch_invariant=batch_invariant,
    )
    backend.kv[:, -1] = float("nan")
    return backend


def schedule(world: PagedWorld, rng: random.Random, count: int, longest: int = 40) -> list[list[int]]:
    """Lengths of rows of so many steps: decodes, hand-offs and chunks of prompts."""
    kinds = ((1,), (1, 1, 2, 4), (1, 3, longest))
    return [[rng.choice(rng.choice(kinds)) for _ in range(rng.randint(1, NUM_SLOTS))] for _ in range(count)]


def new_world(shape: KvShape, dtype: torch.dtype, seed: int) -> tuple[PagedWorld, random.Random]:
    rng = random.Random(seed)
    return PagedWorld(shape, rng, num_slots=NUM_SLOTS, max_blocks=MAX_BLOCKS, dtype=dtype), rng


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group", [2, 4, 7])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_flashinfer_computes_the_definition(group: int, dtype: torch.dtype, batch_invariant: bool) -> None:
    shape = kv_shape(group)
    world, rng = new_world(shape, dtype, group)
    backend = flashinfer_backend(shape, dtype, batch_invariant=batch_invariant)
    other = SdpaBackend(shape, num_slots=NUM_SLOTS, max_blocks=MAX_BLOCKS, dtype=dtype, device=GPU)
    tolerance = TOLERANCE[dtype]
    for lengths in schedule(world, rng, 20):
        world.change()
        if rows := world.rows(lengths, backend, other):
            queries, key_values = world.tokens(sum(row.length for row in rows))
            expected = world.expected(rows, queries, key_values)
            for one in (backend, other):
                found = attended(one, rows, queries, key_values, GPU)
                torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_torchs_own_kernels_compute_the_definition(dtype: torch.dtype) -> None:
    shape = kv_shape(3)
    world, rng = new_world(shape, dtype, 5)
    backend = SdpaBackend(shape, num_slots=NUM_SLOTS, max_blocks=MAX_BLOCKS, dtype=dtype, device=GPU)
    for lengths in schedule(world, rng, 20):
        world.change()
        if rows := world.rows(lengths, backend):
            queries, key_values = world.tokens(sum(row.length for row in rows))
            expected = world.expected(rows, queries, key_values)
            found = attended(backend, rows, queries, key_values, GPU)
            torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    backend.kv.fill_(float("nan"))
    backend.clear([0, 3])
    assert backend.kv_blocks().memory[:, :, [0, 3]].eq(0).all()


@pytest.mark.parametrize("group", [2, 8])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_plans_that_stay_serve_any_step_that_fits(group: int, batch_invariant: bool) -> None:
    shape, sizes = kv_shape(group), ((8, 8), (4, 4), (7, 8), (8, 200))
    world, rng = new_world(shape, torch.bfloat16, group)
    backend = flashinfer_backend(shape, batch_invariant=batch_invariant)
    plans = {size: backend.fixed_plan(*size) for size in sizes}
    for lengths in schedule(world, rng, 30, longest=20):
        world.change()
        rows = world.rows(lengths, backend)
        num_tokens = sum(row.length for row in rows)
        fitting = [
            (most_rows, most)
            for most_rows, most in sizes
            if len(rows) <= most_rows and num_tokens <= most and (most_rows < most or num_tokens == len(rows))
        ]
        if rows:
            queries, key_values = world.tokens(num_tokens)
            expected = world.expected(rows, queries, key_values)
            size = rng.choice(fitting)
            found = attended_in_place(plans[size], size[1], rows, queries, key_values, GPU)
            torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("num_rows", "num_tokens"), [(4, 4), (4, 24)])
@pytest.mark.parametrize("group", [2, 8])
def test_a_recorded_plan_is_replayed_for_other_steps(group: int, num_rows: int, num_tokens: int) -> None:
    shape = kv_shape(group)
    world, rng = new_world(shape, torch.bfloat16, 1)
    backend = flashinfer_backend(shape)
    plan = backend.fixed_plan(num_rows, num_tokens)
    queries = torch.zeros((num_tokens, shape.num_heads, 128), dtype=torch.bfloat16, device=GPU)
    key_values = torch.zeros((num_tokens, 4, 128), dtype=torch.bfloat16, device=GPU)

    def work() -> Tensor:
        return torch.stack([plan.attend(layer, queries, key_values, 128**-0.5) for layer in range(2)])

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    for _ in range(20):
        world.change()
        longest = 1 if num_rows == num_tokens else num_tokens // num_rows
        rows = world.rows([rng.randint(1, longest) for _ in range(rng.randint(1, num_rows))], backend)
        if rows:
            count = sum(row.length for row in rows)
            new_queries, new_key_values = world.tokens(count)
            # Layers share the inputs here.
            new_queries, new_key_values = (
                new_queries[:1].expand(2, -1, -1, -1),
                new_key_values[:1].expand(2, -1, -1, -1),
            )
            expected = world.expected(rows, new_queries, new_key_values)
            queries.fill_(float("nan"))[:count] = new_queries[0].to(GPU)
            key_values.fill_(float("nan"))[:count] = new_key_values[0].to(GPU)
            plan.fill(rows)
            graph.replay()
            torch.testing.assert_close(found[:, :count].float().cpu(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("group", [2, 8])
def test_a_row_is_the_same_to_the_bit_in_any_company(group: int) -> None:
    """Alone, among others, and in plans that stay: decode, hand-off and chunk (C44)."""
    shape = kv_shape(group, num_blocks=NUM_SLOTS * MAX_BLOCKS)
    backend = flashinfer_backend(shape, batch_invariant=True)
    generator = torch.Generator().manual_seed(3)
    for slot in range(NUM_SLOTS):
        backend.assign(slot, list(range(slot * MAX_BLOCKS, (slot + 1) * MAX_BLOCKS)))
    backend.kv[:, :-1] = torch.randn(backend.kv[:, :-1].shape, generator=generator).to(GPU, torch.bfloat16)
    for length in (1, 5, 60):
        row = Row(0, 67, 67 + length)
        queries = torch.randn((2, length, shape.num_heads, 128), generator=generator).to(torch.bfloat16)
        key_values = torch.randn((2, length, 4, 128), generator=generator).to(torch.bfloat16)
        alone = attended(backend, [row], queries, key_values, GPU)
        for others in (1, 3, 7):
            company = [Row(slot, 5 * slot, 5 * slot + 1 + 3 * slot % 11) for slot in range(1, 1 + others)]
            count = sum(one.length for one in company)
            more = torch.randn((2, count, shape.num_heads, 128), generator=generator).to(torch.bfloat16)
            more_kv = torch.randn((2, count, 4, 128), generator=generator).to(torch.bfloat16)
            step = ([row, *company], torch.cat((queries, more), 1), torch.cat((key_values, more_kv), 1))
            assert attended(backend, *step, GPU)[:, :length].equal(alone)
            fixed = backend.fixed_plan(8, 128)
            assert attended_in_place(fixed, 128, *step, GPU)[:, :length].equal(alone)
        if length == 1:
            assert attended_in_place(backend.fixed_plan(4, 4), 4, [row], queries, key_values, GPU).equal(alone)


@pytest.mark.parametrize("group", [2, 8])
def test_a_long_text_is_cut_into_parts_and_put_together(group: int) -> None:
    num_blocks = 1024
    shape = KvShape(1, 1, 128, num_blocks, 16, group)
    backend = flashinfer_backend(shape, max_blocks=num_blocks)
    backend.assign(0, random.Random(0).sample(range(num_blocks), num_blocks))
    generator = torch.Generator().manual_seed(0)
    length = 16 * num_blocks
    key_values = torch.randn((1, length, 2, 128), generator=generator).to(torch.bfloat16)
    queries = torch.randn((1, length, group, 128), generator=generator).to(torch.bfloat16)
    for start, end in ((0, 4096), (4096, length - 9), (length - 9, length - 1), (length - 1, length)):
        found = attended(backend, [Row(0, start, end)], queries[:, start:end], key_values[:, start:end], GPU)
        # The last eight tokens by definition.
        for position in range(max(start, end - 8), end):
            keys, values = key_values[0, : position + 1].float().unbind(1)
            weights = (queries[0, position].float() @ keys.T * 128**-0.5).softmax(-1)
            torch.testing.assert_close(found[0, position - start], (weights @ values).flatten(), atol=1e-2, rtol=2e-2)


def test_planning_and_attending_wait_for_nothing() -> None:
    """torch raises where something would wait. What flashinfer itself asks of CUDA is not seen by this."""
    shape = kv_shape(2)
    backends: list[AttentionBackend] = [
        flashinfer_backend(shape),
        SdpaBackend(shape, num_slots=NUM_SLOTS, max_blocks=MAX_BLOCKS, dtype=torch.bfloat16, device=GPU),
    ]
    rows = [[Row(0, 0, 40), Row(1, 0, 3)], [Row(0, 40, 41), Row(1, 3, 6)], [Row(0, 41, 42), Row(1, 6, 7)]]
    counts = [sum(row.length for row in step) for step in rows]
    tokens = [torch.randn(2, count, 4, 128, dtype=torch.bfloat16, device=GPU) for count in counts]
    for backend in backends:
        backend.assign(0, [0, 1, 2, 3])
        backend.assign(1, [4, 5])
        for is_first in (True, False):
            torch.cuda.set_sync_debug_mode("default" if is_first else "error")
            try:
                for step, (query, key_value) in zip(rows, tokens, strict=True):
                    backend.plan(step).attend(1, query, key_value, 128**-0.5)
            finally:
                torch.cuda.set_sync_debug_mode("default")

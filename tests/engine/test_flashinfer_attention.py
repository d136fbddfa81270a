"""The flashinfer backend attends as the definition says, whatever the order of steps; on a GPU its kernels do."""

import ast
import inspect
import random
from collections.abc import Callable
from typing import Any

import flashinfer
import pytest
import torch
from allroads.config import ModelSettings
from allroads.engine.attention import AttentionBackend, KvShape, Row
from allroads.engine.cuda_attention import pick_attention
from allroads.engine.flashinfer_attention import FlashInferBackend
from allroads.engine.flashinfer_tiles import invariant_rows, workspace_bytes
from allroads.engine.sdpa_attention import SdpaBackend
from allroads.errors import Internal, StartupError
from hypothesis import given, settings
from hypothesis import strategies as st

from ..doubles import dense_flashinfer
from .paged_world import PagedWorld, attended, attended_in_place

CPU = torch.device("cpu")
NUM_SLOTS, MAX_BLOCKS = 6, 6
FIXED_SHAPES = [(1, 1), (4, 4), (6, 6), (1, 4), (3, 8), (6, 20)]
"""Rows and tokens of plans that stay."""


def kv_shape(group: int, *, block_size: int = 4, num_blocks: int = 24, head_dim: int = 8) -> KvShape:
    return KvShape(
        num_layers=2,
        num_kv_heads=2,
        head_dim=head_dim,
        num_blocks=num_blocks,
        block_size=block_size,
        num_heads=2 * group,
    )


def dense_backend(shape: KvShape, *, batch_invariant: bool = False, max_blocks: int = MAX_BLOCKS) -> FlashInferBackend:
    """Over the dense wrappers, with NaN wherever nothing was stored."""
    backend = FlashInferBackend(
        shape,
        num_slots=NUM_SLOTS,
        max_blocks=max_blocks,
        dtype=torch.float32,
        device=CPU,
        batch_invariant=batch_invariant,
        kinds=dense_flashinfer,
    )
    backend.kv.fill_(float("nan"))
    return backend


def lengths_of(draw: Callable[..., int]) -> list[int]:
    """New tokens of some rows: often one each, sometimes a chunk of a prompt among them."""
    count = draw(st.integers(1, NUM_SLOTS))
    return [draw(st.sampled_from((1, 1, 1, 2, 3, 9))) for _ in range(count)]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_schedule_equals_the_definition_and_the_other_backend(data: st.DataObject) -> None:
    shape = kv_shape(data.draw(st.sampled_from((1, 2, 4, 5))), block_size=data.draw(st.sampled_from((1, 4, 5))))
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    world = PagedWorld(shape, rng, num_slots=NUM_SLOTS, max_blocks=MAX_BLOCKS, dtype=torch.float32)
    backends: list[AttentionBackend] = [
        dense_backend(shape),
        dense_backend(shape, batch_invariant=True),
        SdpaBackend(shape, num_slots=NUM_SLOTS, max_blocks=MAX_BLOCKS, dtype=torch.float32),
    ]
    for _ in range(data.draw(st.integers(2, 6))):
        world.change()
        rows = world.rows(lengths_of(data.draw), *backends)
        if not rows:
            continue
        queries, key_values = world.tokens(sum(row.length for row in rows))
        expected = world.expected(rows, queries, key_values)
        for backend in backends:
            torch.testing.assert_close(
                attended(backend, rows, queries, key_values, CPU), expected, atol=1e-5, rtol=1e-4
            )


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_plans_that_stay_serve_any_step_that_fits_and_padding_touches_nothing(data: st.DataObject) -> None:
    shape = kv_shape(data.draw(st.sampled_from((1, 2, 4))))
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    world = PagedWorld(shape, rng, num_slots=NUM_SLOTS, max_blocks=MAX_BLOCKS, dtype=torch.float32)
    backend = dense_backend(shape, batch_invariant=data.draw(st.booleans()))
    plans = {size: backend.fixed_plan(*size) for size in FIXED_SHAPES}
    for _ in range(data.draw(st.integers(2, 8))):
        world.change()
        rows = world.rows(lengths_of(data.draw), backend)
        num_tokens = sum(row.length for row in rows)
        fitting = [
            size
            for size in FIXED_SHAPES
            if len(rows) <= size[0] and num_tokens <= size[1] and (size[0] < size[1] or num_tokens == len(rows))
        ]
        if not rows:
            continue
        queries, key_values = world.tokens(num_tokens)
        expected = world.expected(rows, queries, key_values)
        if not fitting:
            found = attended(backend, rows, queries, key_values, CPU)
        else:
            size = rng.choice(fitting)
            found = attended_in_place(plans[size], size[1], rows, queries, key_values, CPU)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    untouched = [block for block in range(shape.num_blocks) if block not in world.used]
    assert backend.kv[:, untouched].isnan().all()


def test_a_plan_that_stays_refuses_what_does_not_fit() -> None:
    backend = dense_backend(kv_shape(2))
    for slot in range(NUM_SLOTS):
        backend.assign(slot, [slot])
    with pytest.raises(Internal):
        backend.fixed_plan(2, 2).fill([Row(0, 0, 1), Row(1, 0, 1), Row(2, 0, 1)])
    with pytest.raises(Internal):
        backend.fixed_plan(2, 4).fill([Row(0, 0, 3), Row(1, 0, 2)])


def test_what_is_cleared_holds_no_nan_in_any_layer() -> None:
    backend = dense_backend(kv_shape(2))
    backend.clear([3, 5])
    clean = backend.kv.isfinite().all(dim=(0, 2, 3, 4, 5))
    assert clean.nonzero().flatten().tolist() == [3, 5]
    blocks = backend.kv_blocks()
    assert blocks.num_blocks == 25
    assert blocks.memory[:, 3].isfinite().all()


def test_another_scaling_than_the_usual_is_refused_with_what_to_do() -> None:
    backend = dense_backend(kv_shape(2))
    backend.assign(0, [0])
    plan = backend.plan([Row(0, 0, 1)])
    query, key_value = torch.zeros(1, 4, 8), torch.zeros(1, 4, 8)
    with pytest.raises(StartupError, match='set attention to "sdpa"') as raised:
        plan.attend(0, query, key_value, 0.1)
    assert raised.value.field == "attention"


@given(st.integers(1, 80), st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(0, 40), st.booleans())
def test_batch_invariant_steps_all_get_the_tile_of_a_single_token(
    group: int, lengths: list[int], num_spare: int, is_large: bool
) -> None:
    """The wrapper doubles tell what flashinfer's scheduler would choose."""
    head_dim, total = 256 if is_large else 128, sum(lengths)

    def tile(num_rows: int, num_tokens: int, *, is_fixed: bool) -> int:
        queries = (num_tokens - num_rows + 1) * group if is_fixed else num_tokens * group // num_rows
        return 128 if queries > 64 and head_dim < 256 else 64 if queries > 16 else 16

    alone = tile(1, 1, is_fixed=False)
    assert tile(invariant_rows(len(lengths), total, group, is_fixed=False), total, is_fixed=False) == alone
    for rows, tokens in ((total, total), (min(total, len(lengths)) + 1, total + 1 + num_spare)):
        assert tile(invariant_rows(rows, tokens, group, is_fixed=True), tokens, is_fixed=True) == alone


def test_batch_invariant_plans_never_cut_texts_and_have_one_tile() -> None:
    backend = dense_backend(kv_shape(4, num_blocks=200), batch_invariant=True, max_blocks=30)
    for slot in range(NUM_SLOTS):
        backend.assign(slot, list(range(30 * slot, 30 * slot + 30)))
    wrappers = set()
    for rows in ([Row(0, 0, 1)], [Row(0, 0, 100)], [Row(0, 0, 1), Row(1, 0, 90), Row(2, 5, 9)]):
        plan = backend.plan(rows)
        wrappers.add((plan._attention._wrapper.tile, plan._attention._wrapper.splits))  # type: ignore[attr-defined]
    for size in ((1, 1), (6, 6), (2, 64), (6, 7)):
        fixed = backend.fixed_plan(*size)
        wrappers.add((fixed._attention._wrapper.tile, fixed._attention._wrapper.splits))  # type: ignore[attr-defined]
    assert wrappers == {(16, False)}


@pytest.mark.parametrize("invariant", [False, True])
def test_the_schedule_of_a_fixed_shape_begins_as_zeros(invariant: bool) -> None:
    """What no plan has written of it may be read as numbers of rows."""
    backend = dense_backend(kv_shape(2), batch_invariant=invariant)
    for size in FIXED_SHAPES:
        wrapper = backend.fixed_plan(*size)._attention._wrapper  # type: ignore[attr-defined]
        assert not wrapper._pin_memory_int_workspace_buffer.any()


def test_the_workspace_holds_what_the_scheduler_may_ask_for() -> None:
    """By the numbers of flashinfer's `PrefillPlan`, for Qwen3-32B on a GPU of 132 multiprocessors."""
    shape = KvShape(64, 8, 128, 1000, 16, 64)
    tiles = 2 * 132 // 8
    assert tiles * 128 * 64 * 129 * 4 <= workspace_bytes(shape, 132) < 150 << 20
    # 64 rows of 128 tokens: tiles of 128, of which each row may have one that is not full.
    assert (128 * 8 // 128 + 63) * 128 * 64 * 129 * 4 <= workspace_bytes(shape, 132, 64, 128) < 320 << 20
    # As many rows as tokens: the small tile.
    assert (128 * 8 // 16 + 127) * 16 * 64 * 129 * 4 <= workspace_bytes(shape, 132, 128, 128) < 110 << 20


def test_a_larger_workspace_is_made_where_it_must_be_and_then_shared() -> None:
    backend = dense_backend(kv_shape(4))
    first = backend.workspace_for()
    assert backend.workspace_for(2, 3) is first
    larger = backend.workspace_for(6, 200)
    assert larger.nbytes > first.nbytes
    assert backend.workspace_for(6, 200) is backend.workspace_for() is larger


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("kind", ["BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"])
@pytest.mark.parametrize("method", ["__init__", "plan", "run", "reset_workspace_buffer"])
def test_the_dense_wrappers_take_what_the_real_ones_take(kind: str, method: str) -> None:
    real, dense = getattr(getattr(flashinfer, kind), method), getattr(getattr(dense_flashinfer, kind), method)
    assert parameters(dense) == parameters(real)


OLDEST = {
    "BatchDecodeWithPagedKVCacheWrapper": {
        "use_cuda_graph", "use_tensor_cores", "paged_kv_indptr_buffer", "paged_kv_indices_buffer",
        "paged_kv_last_page_len_buffer", "backend", "q_data_type", "kv_data_type", "sm_scale", "non_blocking",
        "seq_lens", "out",
    },
    "BatchPrefillWithPagedKVCacheWrapper": {
        "use_cuda_graph", "qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf",
        "backend", "causal", "sm_scale", "q_data_type", "kv_data_type", "non_blocking", "seq_lens", "disable_split_kv",
        "out",
    },
}  # fmt: skip
"""Of what flashinfer 0.5.3 takes by name, what we give; those given by position are in the same order there."""


def test_only_what_the_oldest_version_takes_is_given() -> None:
    from allroads.engine import flashinfer_wrappers  # noqa: PLC0415 (its source is read)

    given = {kind: set() for kind in OLDEST}  # type: dict[str, set[str]]
    for node in ast.walk(ast.parse(inspect.getsource(flashinfer_wrappers))):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Attention") and node.name != "Attention":
            kind = next(name for name in OLDEST if node.name.removesuffix("Attention") in name)
            given[kind] = {
                keyword.arg
                for call in ast.walk(node)
                if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in {kind, "plan", "run"}
                for keyword in call.keywords
                if keyword.arg
            }
    assert given == OLDEST


def settings_of(attention: str) -> ModelSettings:
    return ModelSettings.model_validate({"path": "model", "device": "cuda:0", "attention": attention})


def test_where_flashinfer_cannot_be_used_it_is_said_why() -> None:
    given = {"num_slots": 2, "max_blocks": 4, "device": CPU, "dtype": torch.float32}
    backend, reason = pick_attention(settings_of("auto"), kv_shape(2), **given)  # type: ignore[arg-type]
    assert isinstance(backend, SdpaBackend)
    assert reason == "sdpa, since it does not compute in float32, only in bfloat16 and float16"
    backend, reason = pick_attention(settings_of("sdpa"), kv_shape(2), **given)  # type: ignore[arg-type]
    assert reason == "sdpa, as the settings say"
    with pytest.raises(StartupError, match=r"since it does not take heads of 8.* set it to \"auto\"") as raised:
        pick_attention(settings_of("flashinfer"), kv_shape(2), **given | {"dtype": torch.bfloat16})  # type: ignore[arg-type]
    assert raised.value.field == "attention"
    _, reason = pick_attention(
        settings_of("auto"),
        kv_shape(2, head_dim=64),
        **given | {"dtype": torch.bfloat16},  # type: ignore[arg-type]
    )
    assert reason == "sdpa, since cpu is no NVIDIA GPU"

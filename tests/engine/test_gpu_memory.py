"""How models share GPUs where nobody says how much they may take. The GPUs are made of numbers."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from allroads.config import MeshSettings, ModelSettings, load_settings, save_settings
from allroads.errors import CheckpointError, StartupError
from allroads.gpus import AskGpus, GpuFacts
from allroads.memory import resolve_memory
from allroads.model_size import model_size
from allroads.placement import devices_of, part_size, services_on
from allroads.step_memory import CONTEXT_BYTES, ROUTER_BYTES, model_step_bytes
from allroads.weight_headers import input_embedding, stored_tensors

from ..doubles.tiny_pair import write_tiny_pair

GIB = 1 << 30
AUTO = {"num_kv_tokens": "auto"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    write_tiny_pair(directory)
    return directory


def mesh(pair: Path, **changed: Any) -> MeshSettings:
    """All on cuda:0 but the router, unless told otherwise."""
    parts: dict[str, Any] = {name: {"path": str(pair / name), "device": "cuda:0"} for name in ("slm", "llm", "router")}
    parts["router"]["device"] = "cpu"
    for name, values in changed.items():
        parts[name] = {**parts.get(name, {}), **values} if isinstance(values, dict) else values
    return load_settings(None, parts)


def gpu(ordinal: int = 0, *, total: int = 8 * GIB, free: int | None = None) -> GpuFacts:
    return GpuFacts(ordinal, "Test GPU", f"uuid-{ordinal}", (9, 0), total, total if free is None else free)


def asked(*gpus: GpuFacts) -> AskGpus:
    def ask(ordinals: Collection[int]) -> Mapping[int, GpuFacts]:
        assert set(ordinals) <= {one.ordinal for one in gpus}, "asked for a GPU that has nothing to do with it"
        return {one.ordinal: one for one in gpus}

    return ask


def nobody(ordinals: Collection[int]) -> Mapping[int, GpuFacts]:
    raise AssertionError("no GPU need be asked")


def taken(settings: MeshSettings, device: str) -> int:
    """Weights and KV of the models on a device."""
    total = 0
    for tier in settings.tiers.values():
        weight_bytes, kv_bytes = part_size(tier)
        total += devices_of(tier).count(device) * (weight_bytes + tier.allotted_kv_tokens * kv_bytes)
    return total


def test_a_share_less_what_steps_need_is_what_weights_and_kv_take(pair: Path) -> None:
    settings = mesh(pair, slm=AUTO, llm=AUTO, memory_bytes={"cuda:0": "auto"})
    resolved = resolve_memory(settings, asked(gpu()))
    steps = model_step_bytes(settings.slm) + model_step_bytes(settings.llm)
    budget = int(0.9 * 8 * GIB) - steps
    assert resolved.memory_bytes == {"cuda:0": budget}
    spare = budget - taken(resolved, "cuda:0")
    block_bytes = 16 * sum(model_size(tier.path, tier.dtype).kv_bytes_per_token for tier in resolved.tiers.values())
    assert 0 <= spare < block_bytes
    assert resolved.slm.num_kv_tokens == resolved.llm.num_kv_tokens


def test_nothing_said_of_a_gpu_is_auto_where_a_model_wants_to_know(pair: Path) -> None:
    said = resolve_memory(mesh(pair, slm=AUTO, llm=AUTO, memory_bytes={"cuda": "auto"}), asked(gpu()))
    unsaid = resolve_memory(mesh(pair, slm=AUTO, llm=AUTO), asked(gpu()))
    assert (said.memory_bytes, unsaid.memory_bytes) == (
        {"cuda": unsaid.memory_bytes["cuda:0"]},
        {"cuda:0": unsaid.memory_bytes["cuda:0"]},
    )
    assert said.tiers == unsaid.tiers
    stated = mesh(pair)
    assert resolve_memory(stated, nobody) == stated


def test_numbers_are_the_same_whatever_is_free_and_no_gpu_is_asked_for_them_again(pair: Path, tmp_path: Path) -> None:
    settings = mesh(pair, slm=AUTO, llm=AUTO)
    first = resolve_memory(settings, asked(gpu()), before_start=True)
    assert resolve_memory(settings, asked(gpu(free=GIB))) == first
    save_settings(first, tmp_path / "mesh.yaml")
    assert resolve_memory(load_settings(tmp_path / "mesh.yaml"), nobody) == first


def test_a_smaller_share_leaves_memory_to_others(pair: Path) -> None:
    shares = {
        share: resolve_memory(mesh(pair, slm=AUTO, llm=AUTO, memory_share=share), asked(gpu())) for share in (0.6, 0.9)
    }
    budgets = {share: resolved.memory_bytes["cuda:0"] for share, resolved in shares.items()}
    assert int(budgets[0.9]) - int(budgets[0.6]) == int(0.9 * 8 * GIB) - int(0.6 * 8 * GIB)
    assert shares[0.6].slm.allotted_kv_tokens < shares[0.9].slm.allotted_kv_tokens


def test_what_is_not_free_before_the_start_is_refused_with_a_share_that_would_do(pair: Path) -> None:
    settings = mesh(pair, slm=AUTO, llm=AUTO)
    used = gpu(free=6 * GIB)
    numbers = rf"{int(0.9 * 8 * GIB)} of .* {6 * GIB} are free: lower memory_share to 0\.75"
    with pytest.raises(StartupError, match=numbers) as caught:
        resolve_memory(settings, asked(used), before_start=True)
    assert caught.value.field == "memory_share"
    lowered = settings.model_copy(update={"memory_share": 0.75})
    assert resolve_memory(lowered, asked(used), before_start=True).slm.allotted_kv_tokens > 0


def test_a_gpu_that_is_too_small_is_refused_with_all_numbers(pair: Path) -> None:
    settings = mesh(pair, slm=AUTO, llm=AUTO)
    steps = model_step_bytes(settings.slm) + model_step_bytes(settings.llm)
    with pytest.raises(StartupError) as caught:
        resolve_memory(settings, asked(gpu(total=GIB)))
    assert caught.value.field == "memory_bytes"
    for words in ("0 bytes of cuda:0 are too few", "slm: weights", "memory_share 0.9", str(GIB), str(steps)):
        assert words in caught.value.message


def test_the_router_takes_its_part_of_a_gpu(pair: Path) -> None:
    without = resolve_memory(mesh(pair, slm=AUTO, llm=AUTO), asked(gpu()))
    beside = resolve_memory(mesh(pair, slm=AUTO, llm=AUTO, router={"device": "cuda"}), asked(gpu()))
    assert int(without.memory_bytes["cuda:0"]) - int(beside.memory_bytes["cuda:0"]) == ROUTER_BYTES


def test_two_gpus_are_shared_apart(pair: Path) -> None:
    settings = mesh(pair, slm=AUTO, llm={**AUTO, "device": "cuda:1"}, memory_bytes={"cuda:0": 3 * 10**6})
    resolved = resolve_memory(settings, asked(gpu(1, total=4 * GIB)))
    assert resolved.memory_bytes == {
        "cuda:0": 3 * 10**6,
        "cuda:1": int(0.9 * 4 * GIB) - model_step_bytes(settings.llm),
    }
    assert taken(resolved, "cuda:0") <= 3 * 10**6 < taken(resolved, "cuda:1")


def test_a_model_that_is_cut_takes_its_part_of_each_gpu(pair: Path) -> None:
    settings = mesh(pair, slm=AUTO, llm={**AUTO, "tensor_parallel": 2})
    whole = model_size(settings.llm.path, "float32")
    weight_bytes, kv_bytes = part_size(settings.llm)
    tensors = stored_tensors(settings.llm.path)
    embedding = 4 * tensors[input_embedding(tensors, settings.llm.path)].num_values
    assert kv_bytes * 2 == whole.kv_bytes_per_token
    assert 2 * weight_bytes - embedding - whole.weight_bytes in (0, 1)
    assert services_on(settings) == {"cuda:0": ["slm", "llm"], "cuda:1": ["llm"], "cpu": ["router"]}
    resolved = resolve_memory(settings, asked(gpu(0), gpu(1)))
    for device in ("cuda:0", "cuda:1"):
        assert taken(resolved, device) <= int(resolved.memory_bytes[device])
    # Its GPUs keep equally many tokens, as many as the fuller one has room for.
    assert resolved.llm.num_kv_tokens == resolved.slm.num_kv_tokens


def test_the_gpu_with_the_least_room_says_how_many_tokens_a_cut_model_has(pair: Path) -> None:
    cut = {**AUTO, "tensor_parallel": 2}
    roomy = resolve_memory(mesh(pair, slm={"device": "cpu"}, llm=cut), asked(gpu(0), gpu(1)))
    tight = resolve_memory(mesh(pair, slm={"device": "cpu"}, llm=cut, memory_bytes={"cuda:1": 10**6}), asked(gpu(0)))
    assert taken(tight, "cuda:1") <= 10**6
    assert tight.llm.allotted_kv_tokens < roomy.llm.allotted_kv_tokens
    assert resolve_memory(tight, nobody) == tight


def test_parts_on_the_cpu_are_in_one_memory(pair: Path) -> None:
    budget = 3 * 10**6
    cut = {**AUTO, "tensor_parallel": 2, "device": "cpu"}
    elsewhere = {"device": "cuda:1"}
    resolved = resolve_memory(mesh(pair, slm=elsewhere, llm=cut, router=elsewhere, memory_bytes={"cpu": budget}))
    kv_bytes = model_size(resolved.llm.path, "float32").kv_bytes_per_token
    assert 0 <= budget - taken(resolved, "cpu") < 16 * kv_bytes


def test_heads_that_cannot_be_shared_out_are_refused(pair: Path) -> None:
    settings = mesh(pair, llm={**AUTO, "tensor_parallel": 3})
    words = r"llm\.tensor_parallel is 3, .* heads and \d+ KV heads, .*set it to one of \[1"
    with pytest.raises(StartupError, match=words) as caught:
        resolve_memory(settings, asked(gpu(0), gpu(1), gpu(2)))
    assert caught.value.field == "llm.tensor_parallel"


def test_steps_need_more_of_more_tokens_and_less_without_what_is_off(pair: Path) -> None:
    def needed(**changed: Any) -> int:
        return model_step_bytes(ModelSettings(path=pair / "slm", **changed))

    assert CONTEXT_BYTES < needed(max_step_tokens=128) < needed(max_step_tokens=2048)
    assert needed(attention="sdpa") == needed() - 448 * 1024**2
    assert needed(graphs="off") < needed() < needed(max_graph_tokens=256)
    assert needed(max_running=1) < needed()


def test_a_config_that_tells_no_size_of_a_step(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(CheckpointError, match="num_attention_heads"):
        model_step_bytes(ModelSettings(path=tmp_path))

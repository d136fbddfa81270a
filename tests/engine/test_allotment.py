"""Memory of a device that several models share."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.allotment import ModelNeeds, allot, largest_common_kv_tokens
from allroads.config import Dtype, MeshSettings, ModelSettings, load_settings, save_settings
from allroads.engine.engine import Engine
from allroads.engine.loading import load_model
from allroads.errors import CheckpointError, StartupError
from allroads.memory import resolve_memory
from allroads.model_size import model_size, token_kv
from allroads.router.checkpoint import load_router
from allroads.weight_headers import OUTPUT_LAYER, count_parameters
from safetensors.torch import save_file
from transformers import AutoConfig

from ..doubles.tiny_pair import write_tiny_pair

DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    write_tiny_pair(directory)
    return directory


def needs(name: str, *, weights: int, kv: int, block: int = 16, tokens: int | None = None) -> ModelNeeds:
    return ModelNeeds(name, weights, kv, block, tokens)


def mesh(pair: Path, **changed: Any) -> MeshSettings:
    """A mesh whose router is elsewhere, unless told otherwise."""
    parts: dict[str, Any] = {name: {"path": str(pair / name)} for name in ("slm", "llm", "router")}
    parts["router"]["device"] = "cuda:7"
    for name, values in changed.items():
        parts[name] = {**parts.get(name, {}), **values} if isinstance(values, dict) else values
    return load_settings(None, parts)


def sizes(settings: MeshSettings) -> dict[str, int]:
    """Bytes of weights and KV together, by tier."""
    taken = {}
    for name, tier in (("slm", settings.slm), ("llm", settings.llm)):
        size = model_size(tier.path, tier.dtype)
        taken[name] = size.weight_bytes + tier.allotted_kv_tokens * size.kv_bytes_per_token
    return taken


def test_the_common_number_is_the_largest_that_fits() -> None:
    rng = random.Random(0)
    for _ in range(500):
        models = [
            needs(str(index), weights=0, kv=rng.randint(1, 9), block=rng.choice([1, 3, 4, 16]))
            for index in range(rng.randint(1, 4))
        ]
        budget = rng.randint(0, 800)
        fitting = [
            tokens
            for tokens in range(1000)
            if sum(tokens // m.block_size_tokens * m.block_size_tokens * m.kv_bytes_per_token for m in models) <= budget
        ]
        assert largest_common_kv_tokens(budget, models) == fitting[-1]


def test_large_numbers_take_no_longer() -> None:
    models = [needs("slm", weights=0, kv=28_672), needs("llm", weights=0, kv=262_144, block=64)]
    tokens = largest_common_kv_tokens(141 * 10**9, models)
    assert tokens // 64 * 64 * 262_144 + tokens // 16 * 16 * 28_672 <= 141 * 10**9
    assert tokens == pytest.approx(141 * 10**9 / (28_672 + 262_144), rel=1e-3)


def test_weights_and_stated_numbers_come_first() -> None:
    models = [
        needs("a", weights=1000, kv=10, block=4),
        needs("b", weights=500, kv=5, block=4),
        needs("c", weights=200, kv=3, block=8, tokens=21),  # two blocks
        needs("d", weights=100, kv=0, block=1, tokens=0),
    ]
    taken = 1800 + 2 * 8 * 3
    assert allot("cpu", taken + 12 * 15, models) == {"a": 12, "b": 12}
    assert allot("cpu", taken + 12 * 15 - 1, models) == {"a": 8, "b": 8}


def test_each_has_whole_blocks_of_its_own() -> None:
    models = [needs("a", weights=0, kv=1, block=16), needs("b", weights=0, kv=1, block=64)]
    assert allot("cpu", 64 + 112, models) == {"a": 112, "b": 64}
    assert allot("cpu", 128 + 127, models) == {"a": 112, "b": 64}
    assert allot("cpu", 128 + 128, models) == {"a": 128, "b": 128}


def test_none_is_left_without_a_block() -> None:
    models = [needs("a", weights=10, kv=2, block=16), needs("b", weights=20, kv=3, block=64)]
    least = 10 + 20 + 64 * 2 + 64 * 3
    assert allot("cpu", least, models) == {"a": 64, "b": 64}
    with pytest.raises(StartupError) as caught:
        allot("cpu", least - 1, models)
    assert caught.value.field == "memory_bytes"
    for number in (least - 1, least, "weights take 30", "a: weights 10, KV 2 a token", "b: weights 20, KV 3 a token"):
        assert str(number) in caught.value.message


def test_stated_numbers_that_do_not_fit_are_refused() -> None:
    models = [needs("a", weights=100, kv=2, tokens=32), needs("d", weights=50, kv=0, block=1, tokens=0)]
    assert allot("cuda:0", 214, models) == {}
    with pytest.raises(StartupError, match=r"213 bytes of cuda:0 are too few.* stated number of tokens 64 .*214 at"):
        allot("cuda:0", 213, models)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["slm", "llm"])
def test_sizes_are_those_of_the_loaded_model(pair: Path, name: str, dtype: Dtype) -> None:
    model = load_model(pair / name, dtype=dtype, device="cpu")
    size = model_size(pair / name, dtype)
    assert size.weight_bytes == sum(weight.numel() * weight.element_size() for weight in model.parameters())
    engine = Engine.load(ModelSettings(path=pair / name, dtype=dtype, num_kv_tokens=64))
    assert size.kv_bytes_per_token == engine.facts.kv_bytes_per_token


def test_a_tied_output_layer_counts_once_under_whatever_name(tmp_path: Path) -> None:
    table, other = torch.zeros(5, 2), torch.zeros(3)
    embedding = "model.embed_tokens.weight"
    for names, is_tied, expected in (
        ((embedding, OUTPUT_LAYER), True, 13),
        ((embedding, OUTPUT_LAYER), False, 23),
        ((embedding,), True, 13),
        ((OUTPUT_LAYER,), True, 13),
    ):
        save_file({**{name: table.clone() for name in names}, "other": other}, tmp_path / "model.safetensors")
        assert count_parameters(tmp_path, is_tied=is_tied) == expected


def test_weights_in_several_files_are_added(tmp_path: Path) -> None:
    for index in range(3):
        save_file({f"layer.{index}": torch.zeros(4, 2)}, tmp_path / f"model-{index}.safetensors")
    assert count_parameters(tmp_path, is_tied=False) == 24


def test_what_a_config_leaves_out_is_what_transformers_takes(pair: Path) -> None:
    loaded = AutoConfig.from_pretrained(pair / "slm").to_dict()
    kv = token_kv(loaded, pair)
    assert kv.num_bytes("float32") == model_size(pair / "slm", "float32").kv_bytes_per_token
    plain = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64}
    assert token_kv(plain, pair).num_bytes("bfloat16") == 2 * 3 * 4 * 16 * 2
    assert (
        token_kv({**plain, "num_key_value_heads": 2, "head_dim": 32}, pair).num_bytes("float32") == 2 * 3 * 2 * 32 * 4
    )


@pytest.mark.parametrize("wrong", [{"num_attention_heads": 0}, {"num_hidden_layers": 0}, {"hidden_size": None}])
def test_a_config_that_tells_no_size(pair: Path, wrong: dict[str, int | None]) -> None:
    plain = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64}
    with pytest.raises(CheckpointError, match=r"config\.json"):
        token_kv({**plain, **wrong}, pair)
    with pytest.raises(CheckpointError, match="num_attention_heads"):
        token_kv({}, pair)


@pytest.mark.parametrize("llm_dtype", DTYPES)
@pytest.mark.parametrize("block_sizes", [(16, 16), (16, 64), (1, 7)])
def test_tiers_of_a_device_get_all_of_it(pair: Path, llm_dtype: Dtype, block_sizes: tuple[int, int]) -> None:
    budget = 3_000_000
    resolved = resolve_memory(
        mesh(
            pair,
            slm={"num_kv_tokens": "auto", "block_size_tokens": block_sizes[0]},
            llm={"num_kv_tokens": "auto", "block_size_tokens": block_sizes[1], "dtype": llm_dtype},
            memory_bytes={"cpu": budget},
        )
    )
    tiers = {"slm": resolved.slm, "llm": resolved.llm}
    taken = sum(sizes(resolved).values())
    assert taken <= budget
    # The next number at which any of them could have one block more is too large for all together.
    common = max(tier.allotted_kv_tokens for tier in tiers.values())
    following = min((common // tier.block_size_tokens + 1) * tier.block_size_tokens for tier in tiers.values())
    for tier in tiers.values():
        assert tier.allotted_kv_tokens == common // tier.block_size_tokens * tier.block_size_tokens > 0
        more = following // tier.block_size_tokens * tier.block_size_tokens - tier.allotted_kv_tokens
        taken += more * model_size(tier.path, tier.dtype).kv_bytes_per_token
    assert taken > budget


def test_a_stated_number_stays_and_the_rest_goes_to_the_other(pair: Path) -> None:
    settings = mesh(
        pair, slm={"num_kv_tokens": 100}, llm={"num_kv_tokens": "auto"}, memory_bytes={"cpu": 2_000_000}
    )  # fmt: skip
    resolved = resolve_memory(settings)
    small, large = (model_size(pair / name, "float32") for name in ("slm", "llm"))
    left = 2_000_000 - small.weight_bytes - 96 * small.kv_bytes_per_token - large.weight_bytes
    assert resolved.slm == settings.slm
    assert resolved.llm.num_kv_tokens == left // (16 * large.kv_bytes_per_token) * 16


def test_devices_are_apart(pair: Path) -> None:
    settings = mesh(
        pair,
        slm={"num_kv_tokens": "auto", "device": "cuda"},
        llm={"num_kv_tokens": "auto", "device": "cuda:1"},
        memory_bytes={"cuda:0": 900_000, "cuda:1": 800_000},
    )
    resolved = resolve_memory(settings)
    for tier, budget in ((resolved.slm, 900_000), (resolved.llm, 800_000)):
        size = model_size(tier.path, tier.dtype)
        block_bytes = tier.block_size_tokens * size.kv_bytes_per_token
        spare = budget - size.weight_bytes - tier.allotted_kv_tokens * size.kv_bytes_per_token
        assert 0 <= spare < block_bytes


def three(pair: Path, middle: dict[str, Any], **changed: Any) -> MeshSettings:
    """The pair with a model between them, which is another copy of the small one."""
    return mesh(pair, **{"middle": {"mlm": {"path": str(pair / "slm"), **middle}}, **changed})


@pytest.mark.parametrize("dtype", DTYPES)
def test_three_tiers_of_a_device_share_it(pair: Path, dtype: Dtype) -> None:
    budget = 4_000_000
    auto = {"num_kv_tokens": "auto"}
    resolved = resolve_memory(
        three(pair, {**auto, "dtype": dtype, "block_size_tokens": 7}, slm=auto, llm=auto, memory_bytes={"cpu": budget})
    )
    assert list(resolved.tiers) == ["slm", "mlm", "llm"]
    needs = {name: model_size(tier.path, tier.dtype) for name, tier in resolved.tiers.items()}

    def taken(num_tokens: int) -> int:
        return sum(
            needs[name].weight_bytes
            + num_tokens // tier.block_size_tokens * tier.block_size_tokens * needs[name].kv_bytes_per_token
            for name, tier in resolved.tiers.items()
        )

    common = max(tokens for tokens in range(50_000) if taken(tokens) <= budget)
    assert {name: tier.num_kv_tokens for name, tier in resolved.tiers.items()} == {
        "slm": common // 16 * 16, "mlm": common // 7 * 7, "llm": common // 16 * 16,
    }  # fmt: skip
    assert resolve_memory(resolved) == resolved


def test_a_middle_tier_with_a_stated_number_keeps_it_and_takes_from_the_others(pair: Path) -> None:
    auto = {"num_kv_tokens": "auto"}
    parts = {"slm": auto, "llm": auto, "memory_bytes": {"cpu": 3_000_000}}
    without = resolve_memory(mesh(pair, **parts))
    beside = resolve_memory(three(pair, {"num_kv_tokens": 640}, **parts))
    small, large = (model_size(pair / name, "float32") for name in ("slm", "llm"))
    assert beside.middle["mlm"].num_kv_tokens == 640
    lost = (without.slm.allotted_kv_tokens - beside.slm.allotted_kv_tokens) * (
        small.kv_bytes_per_token + large.kv_bytes_per_token
    )
    taken = small.weight_bytes + 640 * small.kv_bytes_per_token
    assert abs(lost - taken) < 16 * (small.kv_bytes_per_token + large.kv_bytes_per_token)


def test_a_middle_tier_may_have_a_device_of_its_own(pair: Path) -> None:
    settings = three(
        pair,
        {"num_kv_tokens": "auto", "device": "cuda:1"},
        memory_bytes={"cuda:1": 900_000},
    )
    resolved = resolve_memory(settings)
    size = model_size(pair / "slm", "float32")
    assert resolved.middle["mlm"].num_kv_tokens == (
        (900_000 - size.weight_bytes) // (16 * size.kv_bytes_per_token) * 16
    )
    assert (resolved.slm, resolved.llm) == (settings.slm, settings.llm)


def test_further_scorers_take_their_part(pair: Path, tmp_path: Path) -> None:
    directory = tmp_path / "citer"
    directory.mkdir()
    save_file({"a": torch.zeros(100, 500), "b": torch.zeros(1)}, directory / "scorer.safetensors")
    parts: dict[str, Any] = {"slm": {"num_kv_tokens": "auto"}, "llm": {"device": "cuda"}}
    numbers = []
    for scorers in ({}, {"citer": str(directory)}):
        router = {"device": "cpu", "scorers": scorers}
        resolved = resolve_memory(mesh(pair, router=router, memory_bytes={"cpu": 1_500_000}, **parts))
        numbers.append(resolved.slm.allotted_kv_tokens)
    kv = model_size(pair / "slm", "float32").kv_bytes_per_token
    assert abs((numbers[0] - numbers[1]) * kv - 4 * 50_001) < 16 * kv


def test_the_router_takes_its_part(pair: Path) -> None:
    parts: dict[str, Any] = {"llm": {"device": "cuda"}, "memory_bytes": {"cpu": 1_500_000}}
    alone = resolve_memory(mesh(pair, slm={"num_kv_tokens": "auto"}, **parts))
    beside = resolve_memory(mesh(pair, slm={"num_kv_tokens": "auto"}, router={"device": "cpu"}, **parts))
    router = load_router(pair / "router", pair / "slm")
    tensors = [*router.classifier.parameters(), router.embedding]
    taken = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    kv = model_size(pair / "slm", "float32").kv_bytes_per_token
    lost = (alone.slm.allotted_kv_tokens - beside.slm.allotted_kv_tokens) * kv
    assert abs(lost - taken) < 16 * kv


def test_resolving_twice_changes_nothing_and_saved_settings_are_the_same(pair: Path, tmp_path: Path) -> None:
    settings = mesh(
        pair, slm={"num_kv_tokens": "auto"}, llm={"num_kv_tokens": "auto"}, memory_bytes={"cpu": 2_000_000}
    )  # fmt: skip
    resolved = resolve_memory(settings)
    assert resolve_memory(resolved) == resolved != settings
    for each in (settings, resolved):
        save_settings(each, tmp_path / "mesh.yaml")
        assert load_settings(tmp_path / "mesh.yaml") == each


def test_without_any_limit_no_file_is_read(tmp_path: Path) -> None:
    settings = mesh(tmp_path / "none")
    assert resolve_memory(settings) == settings


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"llm": {"num_kv_tokens": "auto"}}, ("llm.num_kv_tokens", "memory_bytes: {cpu: <bytes>}")),
        (
            {"middle": {"mlm": {"path": "embedded:slm", "num_kv_tokens": "auto"}}},
            ("middle.mlm.num_kv_tokens", "how much of cpu", "or middle.mlm.num_kv_tokens to a number"),
        ),
        ({"memory_bytes": {"cpu": "auto"}}, ('"auto" is for GPUs', "a number of bytes")),
        (
            {"middle": {"mlm": {"path": "embedded:slm"}}, "memory_bytes": {"cpu": 1000}},
            ("1000 bytes of cpu are too few", "slm: weights", "middle.mlm: weights", "llm: weights"),
        ),
        ({"memory_bytes": {"cpu": 1000}}, ("1000 bytes of cpu are too few", "slm: weights", "32768 tokens")),
        ({"memory_bytes": {"cuda:3": 10**9}}, ("cuda:3 must be devices of this mesh", "cpu, cuda:7")),
        ({"memory_bytes": {"cpu": 10**9, "cpu:0": 10}}, ("each named once",)),
    ],
)
def test_what_cannot_be_is_told_by_the_field(pair: Path, changed: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(StartupError) as caught:
        resolve_memory(mesh(pair, **changed))
    assert caught.value.field == "memory_bytes"
    assert all(word in caught.value.message for word in words)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none"):
        resolve_memory(mesh(tmp_path / "none", memory_bytes={"cpu": 10**9}))


@pytest.mark.parametrize(
    ("key", "changed", "end"),
    [
        ("slm.num_kv_tokens", {"slm": {"num_kv_tokens": 0}}, 'must be a whole number greater than 0, or "auto"'),
        ("slm.num_kv_tokens", {"slm": {"num_kv_tokens": "all"}}, 'must be a whole number greater than 0, or "auto"'),
        ("memory_bytes.cpu", {"memory_bytes": {"cpu": 0}}, 'must be a whole number greater than 0, or "auto"'),
        ("memory_bytes.cpu", {"memory_bytes": {"cpu": "all"}}, 'must be a whole number greater than 0, or "auto"'),
        ("memory_share", {"memory_share": 0}, "greater than 0"),
        ("memory_share", {"memory_share": 1.1}, "less than or equal to 1"),
    ],
)
def test_a_wrong_value_is_told_by_its_key(pair: Path, key: str, changed: dict[str, Any], end: str) -> None:
    with pytest.raises(StartupError) as caught:
        mesh(pair, **changed)
    assert caught.value.field == key
    assert caught.value.message.endswith(end)


def test_the_environment_can_say_it(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLROADS_SLM__NUM_KV_TOKENS", "auto")
    monkeypatch.setenv("ALLROADS_LLM__NUM_KV_TOKENS", "64")
    monkeypatch.setenv("ALLROADS_MEMORY_BYTES", '{"cpu": 2000000}')
    settings = mesh(pair)
    assert (settings.slm.num_kv_tokens, settings.llm.num_kv_tokens) == ("auto", 64)
    assert resolve_memory(settings).slm.allotted_kv_tokens > 0
    with pytest.raises(StartupError, match="auto"):
        assert settings.slm.allotted_kv_tokens


def test_neither_torch_nor_transformers_is_loaded() -> None:
    code = (
        "import sys\n"
        "from allroads.config import load_settings\n"
        "from allroads.memory import resolve_memory\n"
        "changed = {'slm': {'num_kv_tokens': 'auto'}, 'memory_bytes': {'cpu': 10**9}}\n"
        "assert resolve_memory(load_settings(None, changed)).slm.allotted_kv_tokens > 0\n"
        "sys.exit(' '.join({'torch', 'transformers'} & sys.modules.keys()) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_published_router_counts_as_its_file_is_long(pair: Path, tmp_path: Path) -> None:
    """What a .pt file holds is known only when torch has read it."""
    parts: dict[str, Any] = {"memory_bytes": {"cpu": 64_000_000}, "slm": {"num_kv_tokens": "auto"}}
    numbers = []
    for size in (1_000, 8_001_000):
        path = tmp_path / f"{size}.pt"
        path.write_bytes(bytes(size))
        settings = mesh(pair, router={"device": "cpu", "path": str(path)}, **parts)
        numbers.append(resolve_memory(settings).slm.allotted_kv_tokens)
    block_size = settings.slm.block_size_tokens
    kv_bytes = token_kv(AutoConfig.from_pretrained(pair / "slm").to_dict(), pair / "slm").num_bytes("float32")
    assert numbers[0] - numbers[1] == pytest.approx(8_000_000 / kv_bytes, abs=block_size)

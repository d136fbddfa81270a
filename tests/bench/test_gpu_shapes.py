"""The table of shapes, against what is published and against transformers; and configurations against the table."""

import re
from pathlib import Path

import pytest
import torch
from allroads.config import load_settings
from transformers import AutoConfig, AutoModelForCausalLM

from bench.gpu.memory_table import CONFIGS, kv_tokens, memory_rows, sized_settings
from bench.gpu.shapes import PAIRS, ROUTER, SHAPES, TINY_ROUTER, TINY_SLM, Shape

# Totals of the safetensors files, as the hub counts them.
PUBLISHED = {
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
    "DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "DeepSeek-R1-Distill-Qwen-32B": 32_763_876_352,
}
# Of the routers' files, without embeddings.
ROUTERS = {
    "Qwen3-0.6B": 54_677_505,
    "DeepSeek-R1-Distill-Qwen-1.5B": 56_302_081,
    "Qwen3-1.7B": 57_926_657,
    "Qwen3-4B": 59_551_233,
}
GIB = 1 << 30
ONE_GPU = sorted(PAIRS)


def test_parameters_are_the_published_ones() -> None:
    assert {name: shape.num_parameters for name, shape in SHAPES.items()} == PUBLISHED


@pytest.mark.parametrize("name", ROUTERS)
def test_routers_are_the_published_ones(name: str) -> None:
    assert ROUTER.num_parameters(SHAPES[name]) == ROUTERS[name]


@pytest.mark.parametrize("shape", [SHAPES["Qwen3-0.6B"], SHAPES["DeepSeek-R1-Distill-Qwen-1.5B"], TINY_SLM])
def test_transformers_builds_models_of_that_size(shape: Shape) -> None:
    config = AutoConfig.for_model(shape.model_type, **shape.config())
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.num_parameters
    layer = model.model.layers[0].self_attn
    assert shape.kv_bytes_per_token == 2 * 2 * shape.num_layers * layer.k_proj.out_features


def test_a_step_reads_neither_an_input_embedding_of_its_own_nor_idle_experts() -> None:
    dense, sparse = SHAPES["Qwen3-32B"], SHAPES["Qwen3-30B-A3B"]
    assert SHAPES["Qwen3-0.6B"].num_read == PUBLISHED["Qwen3-0.6B"]
    assert dense.num_read == dense.num_parameters - 151_936 * 5120
    # The model card: 3.3B activated, with the embedding.
    assert sparse.num_read + sparse.embedding == pytest.approx(3.3e9, rel=0.02)


@pytest.mark.parametrize("name", ONE_GPU)
def test_a_configuration_says_how_large_the_weights_are(name: str) -> None:
    small, large = (SHAPES[model] for model in PAIRS[name])
    whole = small.weight_bytes + large.weight_bytes + ROUTER.weight_bytes(small)
    (said,) = re.findall(r"Weights and router take ([\d.]+) GB", (CONFIGS / f"{name}.yaml").read_text())
    assert float(said) == pytest.approx(whole / 1e9, abs=0.051)
    settings = load_settings(CONFIGS / f"{name}.yaml")
    assert (settings.slm.path.name, settings.llm.path.name) == PAIRS[name]


def test_every_pair_fits_the_gpus_that_its_configuration_is_for() -> None:
    for row in memory_rows():
        weights = row.slm_weights + row.llm_weights + row.router
        tokens = row.kv_tokens["one of 141 GB"]
        assert tokens is not None
        taken = weights + tokens * (row.slm_kv + row.llm_kv)
        assert 0.8 * 139 * GIB < taken < 0.9 * 139 * GIB, row
        # Steps need some, so that a pair whose weights alone nearly fill a GPU does not fit.
        assert (row.kv_tokens["one of 80 GB"] is None) == (weights > 65e9), row
        assert row.kv_tokens["two of 80 GB"], row


def test_a_large_pair_fits_one_small_gpu_by_the_settings_that_its_configuration_names(tmp_path: Path) -> None:
    text = (CONFIGS / "qwen3-0.6b-32b.yaml").read_text()
    assert "memory_share: 0.95, and for both\n# models max_step_tokens: 512 and max_running: 64" in text
    settings = sized_settings(CONFIGS / "qwen3-0.6b-32b.yaml", tmp_path)
    less = {"max_step_tokens": 512, "max_running": 64}
    changed = settings.with_internal({"slm": less, "llm": less}).model_copy(update={"memory_share": 0.95})
    tokens = kv_tokens(changed, 79 * GIB)
    assert tokens is not None
    assert tokens > 10_000


def test_two_gpus_have_room_for_a_pair_whose_large_model_is_cut(tmp_path: Path) -> None:
    two = CONFIGS / "qwen3-0.6b-32b-two-gpus.yaml"
    settings, whole = load_settings(two), load_settings(CONFIGS / "qwen3-0.6b-32b.yaml")
    assert settings.llm.tensor_parallel == 2
    assert settings.llm.path == whole.llm.path
    tokens = kv_tokens(sized_settings(two, tmp_path), 79 * GIB)
    assert tokens is not None
    assert tokens > 100_000


def test_the_tiny_router_is_counted_like_the_large_ones() -> None:
    width, hidden = TINY_ROUTER.hidden_dims[0], TINY_SLM.hidden_size
    by_hand = 8 * hidden + hidden + 3 * hidden * width + width + width * width + width
    by_hand += 2 * (2 * width + 4 * width * width + 4 * width + 4 * width * width + width) + 2 * width + width + 1
    assert TINY_ROUTER.num_parameters(TINY_SLM) == by_hand

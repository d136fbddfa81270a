"""What is refused, and that the message names it (C47, C48)."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.errors import CheckpointError
from allroads.router.checkpoint import load_router
from safetensors.torch import load_file, save_file

from ..training.small_pair import NUM_TOP_LOGITS, write_pair


class Touch:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def load(models: Path) -> None:
    load_router(models / "router", models / "slm")


def edit_manifest(models: Path, key: str, value: object) -> None:
    path = models / "router" / "manifest.json"
    content = json.loads(path.read_text())
    *parents, last = key.split(".")
    place = content
    for parent in parents:
        place = place[parent]
    place[last] = value
    path.write_text(json.dumps(content))


def test_round_trip(models: Path) -> None:
    loaded = load_router(models / "router", models / "slm")
    state = load_file(models / "router" / "router.safetensors")
    assert loaded.manifest.init_args.logits_size == NUM_TOP_LOGITS
    assert loaded.embedding.shape == (472, 16)
    assert not loaded.classifier.training
    for name, tensor in loaded.classifier.state_dict().items():
        assert torch.equal(tensor, state[name])


@pytest.mark.parametrize("name", ["router.safetensors", "manifest.json"])
def test_a_pickle_is_refused_and_runs_nothing(models: Path, name: str) -> None:
    marker = models / "marker"
    (models / "router" / name).write_bytes(pickle.dumps(Touch(marker)))
    with pytest.raises(CheckpointError, match="damaged"):
        load(models)
    assert not marker.exists()


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(models: Path, keep: int) -> None:
    path = models / "router" / "router.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"router\.safetensors is damaged"):
        load(models)


@pytest.mark.parametrize("name", ["router.safetensors", "manifest.json"])
def test_a_missing_file_is_named(models: Path, name: str) -> None:
    (models / "router" / name).unlink()
    with pytest.raises(CheckpointError, match=f"cannot read .*{name}.*router.path must be"):
        load(models)


def test_missing_extra_and_misshapen_tensors_are_named(models: Path) -> None:
    path = models / "router" / "router.safetensors"
    right = load_file(path)
    name = "backbone.blocks.0.mlp.0.weight"
    for state, message in (
        ({key: tensor for key, tensor in right.items() if key != name}, f"the tensor {name} is missing"),
        (right | {"token_embeddings.other": torch.zeros(2)}, "token_embeddings.other is not part"),
        (right | {name: right[name][:, 1:].contiguous()}, rf"{name} is torch.float32 \[24, 11\], not"),
        (right | {name: right[name].half()}, rf"{name} is torch.float16 .*, not torch.float32"),
        (right | {name: right[name] + 1}, "not the file that manifest.json was written for"),
    ):
        save_file(state, path)
        with pytest.raises(CheckpointError, match=message):
            load(models)


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan"), float("inf"), "0.5", None])
def test_an_invalid_threshold_is_refused(models: Path, threshold: object) -> None:
    edit_manifest(models, "threshold", threshold)
    with pytest.raises(CheckpointError, match="threshold"):
        load(models)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("slm.tokenizer_hash", "f" * 64, "its tokenizer_hash is"),
        ("slm.model_id", "qwen3-28x1024-596m", "its model_id is"),
        ("slm.num_parameters", 1, "its num_parameters is"),
        ("features", ["top_logits"], "features must be"),
        ("feature_dtype", "bfloat16", "feature_dtype"),
        ("version", 2, "version"),
        ("init_args.use_position_embedding", True, "position embeddings"),
        ("init_args.hidden_dims", [], "hidden_dims"),
        ("init_args.hidden_dims", [2**62], "hidden_dims"),
        ("init_args.secret", 1, "init_args.secret"),
    ],
)
def test_what_it_was_made_for_must_fit(models: Path, key: str, value: object, message: str) -> None:
    edit_manifest(models, key, value)
    with pytest.raises(CheckpointError, match=message):
        load(models)


def test_another_training_of_the_same_shape_is_another_model(models: Path, tmp_path: Path) -> None:
    other = write_pair(tmp_path / "other", seed=1)
    with pytest.raises(CheckpointError, match="same shape but other weights"):
        load_router(models / "router", other / "slm")


def test_the_path_of_the_model_does_not_matter(models: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (models / "slm").rename(elsewhere)
    load_router(models / "router", elsewhere)


def test_a_damaged_small_model_is_refused(models: Path) -> None:
    path = models / "slm" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing or damaged"):
        load(models)


def test_a_tied_embedding_under_the_name_of_the_output(models: Path) -> None:
    path = models / "slm" / "model.safetensors"
    state = load_file(path)
    state["lm_head.weight"] = state.pop("model.embed_tokens.weight")
    save_file(state, path, metadata={"format": "pt"})
    load(models)


def test_a_small_model_without_an_embedding_is_refused(models: Path) -> None:
    path = models / "slm" / "model.safetensors"
    save_file({"model.norm.weight": torch.ones(16)}, path)
    with pytest.raises(CheckpointError, match="0 input embeddings instead of one"):
        load(models)

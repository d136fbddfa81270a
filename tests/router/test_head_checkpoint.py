"""Scorers over hidden states: what is refused, and that the message names it (C47, C48)."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from allroads.errors import CheckpointError
from allroads.router.head_checkpoint import load_head, save_head
from safetensors.torch import load_file, save_file

from ..training.small_pair import WIDTHS, write_pair
from .test_checkpoint import Touch

NAMES = ("citer", "co-llm")
WEIGHTS = {"citer": "layers.0.1.running_var", "co-llm": "row.weight"}


def load(models: Path, name: str) -> None:
    load_head(name, models / name, models / "slm")


def edit(path: Path, key: str, value: object) -> None:
    content = json.loads(path.read_text())
    *parents, last = key.split(".")
    place = content
    for parent in parents:
        place = place[parent]
    place[last] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", NAMES)
def test_round_trip(models: Path, name: str, tmp_path: Path) -> None:
    loaded = load_head(name, models / name, models / "slm")
    state = load_file(models / name / "scorer.safetensors")
    assert not any(module.training for module in loaded.network.modules())
    assert {key: tensor.tolist() for key, tensor in loaded.network.state_dict().items()} == {
        key: tensor.tolist() for key, tensor in state.items()
    }
    save_head(tmp_path / "again", loaded.network, loaded.manifest)
    for file in ("scorer.safetensors", "manifest.json"):
        assert (tmp_path / "again" / file).read_bytes() == (models / name / file).read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("file", ["scorer.safetensors", "manifest.json"])
def test_a_pickle_is_refused_and_runs_nothing(models: Path, name: str, file: str) -> None:
    marker = models / "marker"
    (models / name / file).write_bytes(pickle.dumps(Touch(marker)))
    with pytest.raises(CheckpointError, match="damaged"):
        load(models, name)
    assert not marker.exists()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(models: Path, name: str, keep: int) -> None:
    path = models / name / "scorer.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"scorer\.safetensors is damaged"):
        load(models, name)


@pytest.mark.parametrize("file", ["scorer.safetensors", "manifest.json"])
def test_a_missing_file_is_named_with_what_makes_it(models: Path, file: str) -> None:
    for name, trainer in (("citer", "train_citer"), ("co-llm", "train_co_llm")):
        (models / name / file).unlink()
        with pytest.raises(CheckpointError, match=f"cannot read .*{file}.*{trainer}"):
            load(models, name)


@pytest.mark.parametrize("name", NAMES)
def test_missing_extra_and_misshapen_tensors_are_named(models: Path, name: str) -> None:
    path, key = models / name / "scorer.safetensors", WEIGHTS[name]
    right = load_file(path)
    for state, message in (
        ({"other": torch.zeros(1)} | {k: t for k, t in right.items() if k != key}, f"{key} is missing|other is not"),
        (right | {"layers.1.1.num_batches_tracked": torch.tensor(3)}, "num_batches_tracked is not part"),
        (right | {key: right[key][..., 1:].contiguous()}, rf"{key} is torch.float32 \[.*\], not torch.float32 \["),
        (right | {key: right[key].double()}, rf"{key} is torch.float64 .*, not torch.float32"),
        (right | {key: right[key] + 1}, "not the file that manifest.json was written for"),
    ):
        save_file(state, path)
        with pytest.raises(CheckpointError, match=message):
            load(models, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("slm.tokenizer_hash", "f" * 64, "another small model .* its tokenizer_hash is"),
        ("slm.model_id", "qwen3-28x1024-596m", "another small model .* its model_id is"),
        ("slm.num_parameters", 1, "another small model .* its num_parameters is"),
        ("features", ["hidden_states", "token_ids"], "features must be"),
        ("feature_dtype", "bfloat16", "feature_dtype"),
        ("format", "allroads-router", "format"),
        ("name", "r2r", "name"),
        ("version", 2, "version"),
        ("threshold", 1.5, "threshold"),
        ("threshold", float("nan"), "threshold"),
        ("threshold", None, "threshold"),
        ("hidden_states_size", 0, "hidden_states_size"),
        ("hidden_states_size", 2**40, "hidden_states_size"),
        ("hidden_states_size", 32, "hidden_states_size is 32, but the small model in .* has 16"),
        ("secret", 1, "secret"),
    ],
)
def test_what_it_is_and_was_made_for_must_fit(models: Path, name: str, key: str, value: object, message: str) -> None:
    edit(models / name / "manifest.json", key, value)
    with pytest.raises(CheckpointError, match=message):
        load(models, name)


@pytest.mark.parametrize("name", NAMES)
def test_another_training_of_the_same_shape_is_another_model(models: Path, tmp_path: Path, name: str) -> None:
    other = write_pair(tmp_path / "other", seed=1)
    with pytest.raises(CheckpointError, match="same shape but other weights"):
        load_head(name, models / name, other / "slm")


def test_a_scorer_of_another_kind_than_its_name_says_is_refused(models: Path) -> None:
    for name, other in (NAMES, NAMES[::-1]):
        with pytest.raises(CheckpointError, match=f"of another kind: format: .*allroads-{name}"):
            load_head(name, models / other, models / "slm")
    shutil.copy(models / "router" / "router.safetensors", models / "router" / "scorer.safetensors")
    with pytest.raises(CheckpointError, match="of another kind: format"):
        load_head("citer", models / "router", models / "slm")


@pytest.mark.parametrize("name", ["r2r", "other", ""])
def test_a_name_that_is_no_kind_is_refused(models: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"not known; there are citer, co-llm"):
        load_head(name, models / "citer", models / "slm")


def test_sizes_are_those_of_the_small_model(models: Path) -> None:
    loaded = [load_head(name, models / name, models / "slm") for name in NAMES]
    assert [head.manifest.hidden_states_size for head in loaded] == [WIDTHS["slm"]] * 2

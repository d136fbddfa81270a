"""Training is honest about a rare class (C50), repeatable, and exports nothing that is useless."""

import pickle
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from allroads.errors import CheckpointError, StartupError
from allroads.model_identity import identify_model
from allroads.router.checkpoint import load_router
from allroads.router.embedding import embedding_hash, load_embedding
from allroads.router.manifest import MadeFor, MadeForSlm
from allroads.training.dataset import LabelDescription, LabelSet, save_labels
from allroads.training.router_fit import RouterRecipe
from allroads.training.train_router import make_router

from ..router.test_checkpoint import Touch
from .small_pair import write_pair

RECIPE = RouterRecipe(
    logits_size=4, hidden_dims=(16,), normalize_input=False, rate=1e-2, max_epochs=12, batch_size=256, patience=4
)
TOKENS_PER_PROBLEM, HIDDEN = 20, 16


def synthetic(num_problems: int, share: float, *, seed: int = 0) -> LabelSet:
    """Divergent tokens lie along one direction of the hidden state, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    n = num_problems * TOKENS_PER_PROBLEM
    divergent = torch.rand(n, generator=generator) < share
    hidden = torch.randn(n, HIDDEN, generator=generator)
    hidden[:, 0] += 4 * divergent
    neutral = ~divergent & (torch.rand(n, generator=generator) < 0.05)
    return LabelSet(
        top_logits=torch.randn(n, 6, generator=generator).sort(descending=True).values,
        hidden_states=hidden,
        token_ids=torch.randint(0, 472, (n,), generator=generator),
        kinds=(2 * divergent + neutral).to(torch.uint8),
        problem_ids=torch.arange(num_problems).repeat_interleave(TOKENS_PER_PROBLEM),
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


def write(models: Path, directory: Path, labels: LabelSet) -> Path:
    embedding = load_embedding(models / "slm")
    description = LabelDescription(
        slm=MadeForSlm(**asdict(identify_model(models / "slm")), embedding_sha256=embedding_hash(embedding)),
        llm=MadeFor(**asdict(identify_model(models / "llm"))),
        source="synthetic",
        problem_seed=0,
        num_asked=labels.num_problems,
        labels_sha256="",
    )
    save_labels(directory, labels, description)
    return directory


def test_a_rare_class_is_found_and_reported(models: Path, tmp_path: Path) -> None:
    labels = write(models, tmp_path / "labels", synthetic(400, 0.03))
    manifest = make_router(models, labels, tmp_path / "router", RECIPE)
    test = manifest.test
    assert manifest.validation.recall >= 0.95
    assert test.recall > 0.8
    assert test.precision > 0.4
    assert test.pr_auc > 0.7
    assert 0.02 < test.positive_rate < 0.1
    # The class weight of about 30 is out of the probabilities again.
    assert manifest.validation.mean_probability == pytest.approx(manifest.validation.base_rate, rel=0.05)
    card = (tmp_path / "router" / "README.md").read_text()
    assert f"| test | {test.recall:.3f} | {test.precision:.3f} | {test.pr_auc:.3f} |" in card
    assert "| test | 60 | 1,200 |" in card
    loaded = load_router(tmp_path / "router", models / "slm")
    assert loaded.manifest.test == test
    assert loaded.manifest.threshold == manifest.threshold


def test_training_is_repeatable_by_seed(models: Path, tmp_path: Path) -> None:
    labels = write(models, tmp_path / "labels", synthetic(100, 0.1))
    first, second = (make_router(models, labels, tmp_path / name, RECIPE) for name in ("a", "b"))
    assert first == second
    assert (tmp_path / "a/router.safetensors").read_bytes() == (tmp_path / "b/router.safetensors").read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_a_split_without_positives_is_refused(models: Path, tmp_path: Path, share: float) -> None:
    labels = write(models, tmp_path / "labels", synthetic(50, share))
    with pytest.raises(StartupError, match=r"no divergent token among the .* split: label more problems"):
        make_router(models, labels, tmp_path / "router", RECIPE)
    assert not (tmp_path / "router").exists()


def test_a_router_that_finds_nothing_is_refused(models: Path, tmp_path: Path) -> None:
    noise = synthetic(60, 0.05)
    blind = LabelSet(
        top_logits=torch.zeros_like(noise.top_logits),
        hidden_states=torch.zeros_like(noise.hidden_states),
        token_ids=torch.zeros_like(noise.token_ids),
        kinds=noise.kinds,
        problem_ids=noise.problem_ids,
    )
    labels = write(models, tmp_path / "labels", blind)
    with pytest.raises(StartupError, match="no better than chance"):
        make_router(models, labels, tmp_path / "router", RECIPE)
    assert not (tmp_path / "router").exists()


def test_labels_of_another_model_are_refused(models: Path, tmp_path: Path) -> None:
    other = write_pair(tmp_path / "other", seed=5)
    labels = write(other, tmp_path / "labels", synthetic(50, 0.1))
    with pytest.raises(CheckpointError, match="made with another model"):
        make_router(models, labels, tmp_path / "router", RECIPE)


def test_a_pickle_in_place_of_labels_is_refused(models: Path, tmp_path: Path) -> None:
    labels = write(models, tmp_path / "labels", synthetic(50, 0.1))
    marker = tmp_path / "marker"
    (labels / "labels.safetensors").write_bytes(pickle.dumps(Touch(marker)))
    with pytest.raises(CheckpointError, match="damaged"):
        make_router(models, labels, tmp_path / "router", RECIPE)
    assert not marker.exists()

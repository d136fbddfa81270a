"""Trainings of CITER's network and Co-LLM's head: honest about a rare class (C50), repeatable, nothing useless."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from allroads.errors import CheckpointError, StartupError
from allroads.router.head_checkpoint import load_head
from allroads.router.head_manifest import HeadManifest
from allroads.router.head_scorer import HeadScorer
from allroads.training.dataset import save_labels, split_by_problem
from allroads.training.fitting import FitRecipe
from allroads.training.pair import describe_pair
from allroads.training.reference_set import ReferenceDescription, ReferenceSet
from allroads.training.train_citer import make_citer
from allroads.training.train_co_llm import make_co_llm, marginal_loss
from torch import Tensor

from .small_pair import WIDTHS, write_pair

RECIPE = FitRecipe(rate=1e-2, batch_size=256, target_recall=0.9)
TOKENS_PER_PROBLEM = 20
Make = Callable[[Path, Path, Path, FitRecipe], HeadManifest]
MAKERS = {"citer": make_citer, "co-llm": make_co_llm}


def synthetic(num_problems: int, share: float, *, seed: int = 0) -> ReferenceSet:
    """Where only the large model is right lies along one direction of the hidden state, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    n = num_problems * TOKENS_PER_PROBLEM
    draw = torch.rand(n, generator=generator)
    hard, neither = draw < share, draw > 0.9
    hidden = torch.randn(n, WIDTHS["slm"], generator=generator)
    hidden[:, 0] += 5 * hard
    hidden[:, 1] = 1.0  # the head has no bias of its own
    likely, unlikely = math.log(0.8), math.log(0.05)
    slm_right, llm_right = ~hard & ~neither, ~neither
    return ReferenceSet(
        problem_ids=torch.arange(num_problems).repeat_interleave(TOKENS_PER_PROBLEM),
        hidden_states=hidden,
        slm_logprobs=torch.where(slm_right, likely, unlikely),
        llm_logprobs=torch.where(llm_right, likely, unlikely),
        slm_right=slm_right,
        llm_right=llm_right,
        rollout_right=neither,
    )


def blind(references: ReferenceSet) -> ReferenceSet:
    return replace(references, hidden_states=torch.zeros_like(references.hidden_states))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(name: str) -> Make:
    return MAKERS[name]


def write(models: Path, directory: Path, references: ReferenceSet) -> Path:
    slm, llm = describe_pair(models)
    description = ReferenceDescription(
        slm=slm, llm=llm, source="synthetic", problem_seed=0, num_asked=references.num_problems, labels_sha256=""
    )
    save_labels(directory, references, description)
    return directory


def chosen_by_the_policy(name: str, scores: Tensor, threshold: float) -> Tensor:
    """Facts on the methods: CITER routes below tau, Co-LLM above eta."""
    return scores < threshold if name == "citer" else scores > threshold


def test_a_rare_class_is_found_and_reported(models: Path, tmp_path: Path, name: str, make: Make) -> None:
    references = synthetic(400, 0.03)
    out = tmp_path / name
    manifest = make(models, write(models, tmp_path / "references", references), out, RECIPE)
    test = manifest.test
    assert (manifest.validation.recall >= 0.9, test.recall > 0.75, test.precision > 0.4) == (True, True, True)
    assert test.pr_auc > 0.8
    assert 0.02 < test.positive_rate < 0.1
    assert test.base_rate == pytest.approx(0.03, abs=0.01)
    card = (out / "README.md").read_text()
    assert f"| test | {test.recall:.3f} | {test.precision:.3f} | {test.pr_auc:.3f} |" in card
    assert "| test | 60 | 1,200 |" in card
    # What is said is what is served.
    loaded = load_head(name, out, models / "slm")
    assert loaded.manifest.test == test
    part = split_by_problem(references, RECIPE.seed).test
    scores = HeadScorer(loaded).score(torch.empty(len(part), 0), part.hidden_states, torch.zeros(len(part)).long())
    chosen = chosen_by_the_policy(name, scores, manifest.threshold)
    assert float(chosen.float().mean()) == pytest.approx(test.positive_rate)
    assert float(chosen[part.defers].float().mean()) == pytest.approx(test.recall)


def test_the_splits_are_described(models: Path, tmp_path: Path, name: str, make: Make) -> None:
    references = synthetic(200, 0.1)
    manifest = make(models, write(models, tmp_path / "references", references), tmp_path / name, RECIPE)
    parts = (manifest.data.train, manifest.data.validation, manifest.data.test)
    assert [part.num_problems for part in parts] == [140, 30, 30]
    assert sum(part.num_slm_right for part in parts) == int(references.slm_right.sum())
    assert sum(part.num_llm_right for part in parts) == int(references.defers.sum())
    assert all(part.num_slm_right + part.num_llm_right + part.num_neither == part.num_tokens for part in parts)
    assert sum(part.num_neither_suffices for part in parts) == int(references.rollout_right.sum())


def test_training_is_repeatable_by_seed(models: Path, tmp_path: Path, make: Make) -> None:
    references = write(models, tmp_path / "references", synthetic(100, 0.1))
    first, second = (make(models, references, tmp_path / out, RECIPE) for out in ("a", "b"))
    assert first == second
    assert (tmp_path / "a/scorer.safetensors").read_bytes() == (tmp_path / "b/scorer.safetensors").read_bytes()
    assert make(models, references, tmp_path / "c", replace(RECIPE, seed=1)) != first


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_a_split_without_positives_is_refused(models: Path, tmp_path: Path, make: Make, share: float) -> None:
    references = write(models, tmp_path / "references", synthetic(50, share))
    with pytest.raises(StartupError, match=r"no token for the large model among the .* split: label more problems"):
        make(models, references, tmp_path / "out", RECIPE)
    assert not (tmp_path / "out").exists()


def test_a_scorer_that_finds_nothing_is_refused(models: Path, tmp_path: Path, make: Make) -> None:
    references = write(models, tmp_path / "references", blind(synthetic(60, 0.05)))
    with pytest.raises(StartupError, match="no better than chance"):
        make(models, references, tmp_path / "out", RECIPE)
    assert not (tmp_path / "out").exists()


def test_references_of_another_model_are_refused(models: Path, tmp_path: Path, make: Make) -> None:
    other = write_pair(tmp_path / "other", seed=5)
    references = write(other, tmp_path / "references", synthetic(50, 0.1))
    with pytest.raises(CheckpointError, match="read with another model"):
        make(models, references, tmp_path / "out", RECIPE)


def test_the_marginal_likelihood_by_hand() -> None:
    logits = torch.tensor([0.0, 2.0, -30.0], requires_grad=True)
    small, large = torch.tensor([0.2, 0.01, 0.9]), torch.tensor([0.6, 0.9, 1e-30])
    loss = marginal_loss(logits, small.log(), large.log())
    defer = [0.5, 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(30))]
    wanted = (
        -sum(math.log((1 - d) * q + d * p) for d, q, p in zip(defer, small.tolist(), large.tolist(), strict=True)) / 3
    )
    assert loss.item() == pytest.approx(wanted)
    # Deferring more pays where the large model gives the token more, and only there.
    loss.backward()
    assert logits.grad is not None
    assert [value < 0 for value in logits.grad.tolist()] == [True, True, False]


def test_certainty_of_either_model_is_no_infinite_loss() -> None:
    logits = torch.tensor([80.0, -80.0])
    loss = marginal_loss(logits, torch.tensor([0.0, -90.0]), torch.tensor([-90.0, 0.0]))
    assert loss.item() == pytest.approx(80, abs=1)

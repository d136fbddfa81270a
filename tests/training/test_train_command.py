"""`allroads train`: a rare class is reported honestly (C50), and nothing else than a useful router is written."""

import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from allroads.cli.main import main
from allroads.errors import StartupError
from allroads.labelling.dataset import DatasetManifest
from allroads.router.checkpoint import load_router
from allroads.router.classifier import ClassifierArguments, HiddenStatesTokenLMHeadLogitsClassifier
from allroads.router.embedding import load_embedding
from allroads.training import curves
from allroads.training.dataset import split_by_problem
from allroads.training.export import export_router
from allroads.training.fitting import Epoch, FitRecipe, Watcher, fit
from allroads.training.metrics import inner_quantiles
from allroads.training.router_fit import PRESETS, RouterRecipe, logits_of
from allroads.training.train_report import TrainReport, curve, reliability
from allroads.training.train_router import TrainedRouter, train_router
from allroads.training.usefulness import chance_pr_auc
from allroads.training.whole_directory import require_free, whole_directory

from ..cli.commands import COMMAND, environment
from ..router.test_checkpoint import Touch
from .small_pair import write_pair
from .written_labels import RECIPE, synthetic, write_dataset

OPTIONS = (
    "--logits-size=4", "--hidden-dims=16", "--no-normalize-input", "--rate=0.01", "--batch-size=256",
    "--target-recall=0.95", "--num-threads=1",
)  # fmt: skip
Run = Callable[..., "Ended"]
FILES = {"README.md", "curves.svg", "manifest.json", "report.json", "router.safetensors"}


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a command in this process; one of its own would load torch anew each time."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["allroads", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        assert isinstance(left.value.code, int)
        return Ended(left.value.code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def origin(models: Path) -> DatasetManifest:
    return write_dataset(models, models / "labels", synthetic(300, 0.05))


@pytest.fixture(scope="module")
def embedding(models: Path) -> torch.Tensor:
    return load_embedding(models / "slm")


@pytest.fixture(scope="module")
def trained(origin: DatasetManifest, embedding: torch.Tensor) -> TrainedRouter:
    return train_router(synthetic(1000, 0.03), origin, embedding, RECIPE)


def test_three_percent_are_found_and_all_is_told(trained: TrainedRouter) -> None:
    for split in (trained.report.validation, trained.report.test):
        quality = split.quality
        assert quality.base_rate == pytest.approx(0.03, abs=0.01)
        assert (quality.recall > 0.9, quality.precision > 0.25, quality.pr_auc > 0.8) == (True, True, True)
        assert quality.base_rate < quality.positive_rate < 0.1
        assert split.chance_pr_auc < 0.2
        low, high = split.recall_interval
        assert low < quality.recall <= high
    assert trained.manifest.validation == trained.report.validation.quality
    assert trained.manifest.calibrated_share == trained.manifest.validation.positive_rate
    assert len(trained.manifest.score_quantiles) == 19
    best = min(trained.report.epochs, key=lambda epoch: epoch.validation_loss)
    assert trained.report.best_epoch == best.number


def test_probabilities_are_frequencies_again_after_a_class_weight_of_thirty(
    trained: TrainedRouter, embedding: torch.Tensor
) -> None:
    # Tokens that no split held, so that nothing was fitted to them.
    fresh = synthetic(2000, 0.03, seed=77)
    scores = logits_of(trained.classifier, fresh, embedding).sigmoid()
    assert float(scores.mean()) == pytest.approx(float(fresh.divergent.mean()), rel=0.15)
    for part in reliability(scores, fresh.divergent):
        spread = (part.mean_score * (1 - part.mean_score) / part.num_tokens) ** 0.5
        assert abs(part.frequency - part.mean_score) < 4 * spread + 0.25 * part.mean_score + 1e-3, part
    assert trained.report.test.calibration_error < 0.02


def test_one_in_a_thousand_is_found_where_it_can_be(origin: DatasetManifest, embedding: torch.Tensor) -> None:
    labels = synthetic(2000, 0.001, distance=12.0)
    report = train_router(labels, origin, embedding, RECIPE).report
    assert report.test.quality.base_rate < 0.002
    assert report.test.quality.recall >= 0.8
    assert report.test.quality.precision > 0.2
    low, high = report.test.recall_interval
    assert high - low > 0.2  # so few were seen


@pytest.mark.parametrize(("share", "num_problems"), [(0.03, 300), (0.001, 2000)])
def test_what_cannot_be_found_is_refused_with_numbers(
    origin: DatasetManifest, embedding: torch.Tensor, share: float, num_problems: int
) -> None:
    labels = synthetic(num_problems, share, distance=0.0)
    with pytest.raises(StartupError, match=r"recall [01]\.\d+ of \d+, precision .* PR-AUC .* label more problems"):
        train_router(labels, origin, embedding, replace(RECIPE, max_epochs=2))


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_a_split_without_positives_is_refused(origin: DatasetManifest, embedding: torch.Tensor, share: float) -> None:
    with pytest.raises(StartupError, match=r"no divergent token among the .* split: label more problems"):
        train_router(synthetic(50, share), origin, embedding, RECIPE)


def test_chance_is_above_the_base_rate_and_below_what_is_good() -> None:
    assert 0.01 < chance_pr_auc(10_000, 100) < 0.05
    assert 0.01 < chance_pr_auc(200, 2) <= 1
    generator = torch.Generator().manual_seed(3)
    beaten = 0
    for _ in range(200):
        ranks = torch.randperm(2000, generator=generator)[:20].sort().values + 1
        beaten += float((torch.arange(1, 21) / ranks).mean()) > chance_pr_auc(2000, 20)
    assert beaten <= 10  # about one in a hundred


def test_share_and_recall_grow_as_the_threshold_falls(trained: TrainedRouter) -> None:
    for split in (trained.report.validation, trained.report.test):
        points = split.curve
        thresholds, shares, recalls = zip(*((p.threshold, p.share, p.recall) for p in points), strict=True)
        assert list(thresholds) == sorted(thresholds, reverse=True)
        assert (list(shares), list(recalls)) == (sorted(shares), sorted(recalls))
        assert (points[-1].share, points[-1].recall) == (1, 1)
        assert len(points) > 50


def test_points_of_a_curve_are_those_of_its_thresholds() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = (torch.rand(3000, generator=generator) * 50).floor() / 50
    positives = (torch.rand(3000, generator=generator) < scores / 4).float()
    for point in curve(scores, positives):
        chosen = scores >= point.threshold
        assert point.share == pytest.approx(float(chosen.float().mean()))
        assert point.recall == pytest.approx(float(positives[chosen].sum() / positives.sum()))
        assert point.precision == pytest.approx(float(positives[chosen].mean()))


def test_reliability_counts_each_token_once() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(5000, generator=generator) ** 3
    positives = (torch.rand(5000, generator=generator) < scores).float()
    bins = reliability(scores, positives)
    assert sum(part.num_tokens for part in bins) == 5000
    assert sum(part.num_tokens * part.frequency for part in bins) == pytest.approx(float(positives.sum()))
    assert [part.mean_score for part in bins] == sorted(part.mean_score for part in bins)
    assert len(bins) >= 8


def test_quantiles_of_scores() -> None:
    assert inner_quantiles(torch.arange(101).flip(0) / 100) == pytest.approx([i / 20 for i in range(1, 20)])
    assert inner_quantiles(torch.tensor([0.5])) == (0.5,) * 19


def test_the_published_preset_is_the_published_router() -> None:
    recipe = PRESETS["published"]
    arguments = ClassifierArguments(
        hidden_states_size=1024, logits_size=recipe.logits_size, hidden_dims=recipe.hidden_dims,
        expansion_factor=recipe.expansion_factor, dropout_rate=recipe.dropout, normalize_input=recipe.normalize_input,
    )  # fmt: skip
    with torch.device("meta"):
        assert HiddenStatesTokenLMHeadLogitsClassifier(arguments, 1024).num_parameters == 54_677_505
    described = recipe.describe()
    assert (described.rate, described.weight_decay, described.batch_size) == (5e-5, 5e-4, 1024)
    assert (described.max_epochs, described.patience, described.schedule) == (50, 10, "constant")
    assert recipe.target_recall == 0.95


@pytest.mark.parametrize(
    "change",
    [{"rate": 0.0}, {"rate": float("nan")}, {"rate": 1e38}, {"weight_decay": -1.0}, {"batch_size": 1},
     {"max_epochs": 0}, {"patience": 0}, {"target_recall": 0.0}, {"target_recall": 1.1}, {"dropout": 1.0},
     {"logits_size": 0}, {"expansion_factor": 65}, {"hidden_dims": ()}, {"hidden_dims": (0,)}],
    ids=str,
)  # fmt: skip
def test_a_recipe_out_of_range_is_refused_by_name(change: dict[str, float]) -> None:
    (name,) = change
    with pytest.raises(StartupError, match=f"{name} must be"):
        replace(RouterRecipe(), **change).check()  # type: ignore[arg-type]


def test_more_logits_than_were_labelled_are_refused(origin: DatasetManifest, embedding: torch.Tensor) -> None:
    with pytest.raises(StartupError, match="logits_size is 9, but the labels have only 8 logits a token"):
        train_router(synthetic(50, 0.1), origin, embedding, replace(RECIPE, logits_size=9))


def test_a_loss_that_is_never_a_number_is_told() -> None:
    module = torch.nn.Linear(1, 1)
    splits = split_by_problem(synthetic(20, 0.1), 0)
    with pytest.raises(StartupError, match=r"not a number after any of 2 epochs: choose a lower rate than 0\.5"):
        fit(module, splits, lambda rows: module.weight.sum() * float("nan"), FitRecipe(rate=0.5, max_epochs=2))


def test_it_stops_early_and_tells_of_each_step_and_epoch(origin: DatasetManifest, embedding: torch.Tensor) -> None:
    steps: list[tuple[int, int]] = []
    epochs: list[Epoch] = []
    watcher = Watcher(lambda done, total: steps.append((done, total)), epochs.append)
    recipe = replace(RECIPE, max_epochs=60, patience=2, rate=3e-2, schedule="constant")
    report = train_router(synthetic(200, 0.1), origin, embedding, recipe, watcher=watcher).report
    assert report.best_epoch + 2 == len(epochs) == len(report.epochs) < 60
    per_epoch = steps[-1][0] // len(epochs)
    assert [done for done, _ in steps] == list(range(1, per_epoch * len(epochs) + 1))
    assert {total for _, total in steps} == {60 * per_epoch}


def test_the_command_writes_a_router_that_can_be_served_and_the_same_again(
    run: Run, models: Path, origin: DatasetManifest, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        result = run("train", models / "labels", "--out", tmp_path / name, "--slm", models / "slm", *OPTIONS)
        assert result.code == 0, result.stderr
        assert {path.name for path in (tmp_path / name).iterdir()} == FILES
    assert {name: (tmp_path / "a" / name).read_bytes() for name in FILES} == {
        name: (tmp_path / "b" / name).read_bytes() for name in FILES
    }
    report = TrainReport.model_validate_json((tmp_path / "a/report.json").read_text())
    for words in ("recall", "precision", "PR-AUC", "share of the large model", f"{report.test.quality.recall:.1%}"):
        assert words in result.stdout
    manifest = load_router(tmp_path / "a", models / "slm").manifest
    assert manifest.test == report.test.quality
    assert manifest.threshold == report.threshold
    assert manifest.data is not None
    assert manifest.data.labels_sha256 == origin.labels_sha256
    assert (tmp_path / "a/curves.svg").read_text().startswith("<?xml")
    assert "allroads label" in (tmp_path / "a/README.md").read_text()
    again = run("train", models / "labels", "--out", tmp_path / "a", "--slm", models / "slm", *OPTIONS)
    assert (again.code, "exists already" in again.stderr) == (2, True)


@pytest.mark.usefixtures("origin")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--preset=large", "--preset must be small or published"),
        ("--schedule=cosine", "--schedule must be linear or constant"),
        ("--hidden-dims=6x4", "--hidden-dims must be whole numbers"),
        ("--rate=-1", "rate must be greater than 0"),
        ("--logits-size=99", "logits_size is 99, but the labels have only 8"),
        ("--slm=embedded:mlm", "made with another model"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_written(
    run: Run, models: Path, tmp_path: Path, option: str, message: str
) -> None:
    given: list[str | Path] = [*OPTIONS, "--slm", models / "slm", option]
    result = run("train", models / "labels", "--out", tmp_path / "router", *given)
    assert (result.code, message in result.stderr) == (2, True), result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "calibrate"])
@pytest.mark.parametrize("name", ["rows-00000.parquet", "dataset.json"])
@pytest.mark.parametrize("damage", ["pickle", "cut", "missing"])
def test_damaged_labels_are_refused_and_run_nothing(
    run: Run, models: Path, trained: TrainedRouter, tmp_path: Path, command: str, name: str, damage: str
) -> None:
    write_dataset(models, tmp_path / "labels", synthetic(20, 0.2))
    path, marker = tmp_path / "labels" / name, tmp_path / "marker"
    damages: dict[str, Callable[[], object]] = {
        "pickle": lambda: path.write_bytes(pickle.dumps(Touch(marker))),
        "cut": lambda: path.write_bytes(path.read_bytes()[:-20]),
        "missing": path.unlink,
    }
    damages[damage]()
    out = tmp_path / "out"
    if command == "train":
        result = run("train", tmp_path / "labels", "--out", out, "--slm", models / "slm", *OPTIONS)
    else:
        export_router(tmp_path / "router", trained)
        result = run(
            "calibrate", tmp_path / "router", "--dataset", tmp_path / "labels", "--slm", models / "slm",
            "--target-share=0.1", "--out", out, "--num-threads=1",
        )  # fmt: skip
    assert result.code == 2, result.stderr
    assert name in result.stderr
    assert "Traceback" not in result.stderr
    assert not marker.exists()
    assert not out.exists()


def test_the_calibrate_command(
    run: Run, models: Path, origin: DatasetManifest, trained: TrainedRouter, tmp_path: Path
) -> None:
    router = tmp_path / "router"
    export_router(router, trained)
    call = ("calibrate", router, "--dataset", models / "labels", "--slm", models / "slm", "--num-threads=1")
    result = run(*call, "--target-share=0.1")
    assert result.code == 0, result.stderr
    content = json.loads((router / "calibration.json").read_text())
    assert content["dataset_sha256"] == origin.labels_sha256
    assert f"{content['held_out']['share']:.2%}" in result.stdout
    assert f"router.calibration: {router / 'calibration.json'}" in result.stdout
    for given, message in (
        ((), "exactly one target"),
        (("--target-share=0.1", "--target-recall=0.9"), "exactly one target"),
        (("--target-share=nan",), "--target-share must be from 0 to 1, not nan"),
        (("--target-cost=1e9",), "target-cost must be from"),
    ):
        refused = run(*call, *given, "--out", tmp_path / "other.json")
        assert (refused.code, message in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "other.json").exists()


@pytest.mark.usefixtures("origin")
def test_ctrl_c_leaves_nothing(models: Path, tmp_path: Path) -> None:
    arguments = ["train", models / "labels", "--out", tmp_path / "out" / "router", "--slm", models / "slm", *OPTIONS]
    arguments += ["--max-epochs=100000", "--patience=100000", "--schedule=constant"]
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stderr is not None
        assert "epoch 1: loss" in process.stderr.readline()
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, "stopped; nothing was written" in errors) == (1, True), errors
    assert list(tmp_path.rglob("*")) == []


def test_what_breaks_off_while_it_is_written_leaves_nothing(
    trained: TrainedRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(curves, "draw_curves", stop)
    with pytest.raises(KeyboardInterrupt):
        export_router(tmp_path / "router", trained)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_there_is_all_but_the_picture(
    trained: TrainedRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert export_router(tmp_path / "router", trained) is False
    assert {path.name for path in (tmp_path / "router").iterdir()} == FILES - {"curves.svg"}


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with whole_directory(tmp_path / "empty") as directory:
        (directory / "file").write_text("new")
    assert (tmp_path / "empty/file").read_text() == "new"
    with pytest.raises(StartupError, match="exists already"):
        require_free(tmp_path / "empty")
    with pytest.raises(StartupError, match="exists already"), whole_directory(tmp_path / "empty/file"):
        pass
    with pytest.raises(StartupError, match="cannot write to"), whole_directory(tmp_path / "empty/file/below"):
        pass

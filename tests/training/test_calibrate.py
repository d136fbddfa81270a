"""A threshold is only valid for what it was set on (C47), and its file is checked like any other (C48)."""

import json
import logging
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.config import HomeSettings, MeshSettings, RouterSettings, TierSettings, load_settings
from allroads.errors import CheckpointError, StartupError
from allroads.labelling.dataset import load_dataset
from allroads.router.calibration_file import Calibration, read_calibration, write_calibration
from allroads.router.head_checkpoint import load_head
from allroads.router.scorers import load_scorer, load_scorers
from allroads.router.service import _describe
from allroads.training.calibrate_threshold import calibrate_threshold, make_target, place_beside
from allroads.training.dataset import split_by_problem
from allroads.training.export import export_router
from allroads.training.train_router import fitting_embedding, train_router

from ..doubles.tiny_pair import write_random_heads
from ..router.test_checkpoint import Touch
from .small_pair import write_pair
from .written_labels import RECIPE, synthetic, write_dataset

LABELS = synthetic(200, 0.06)
OTHERS = synthetic(120, 0.06, seed=9)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair, a router trained on `LABELS`, other scorers, and both sets of labels as datasets."""
    models = write_pair(tmp_path_factory.mktemp("pair"))
    write_random_heads(models, slm=models / "slm", llm=models / "llm")
    origin = write_dataset(models, models / "labels", LABELS)
    write_dataset(models, models / "others", OTHERS)
    trained = train_router(LABELS, origin, fitting_embedding(models / "slm", origin), RECIPE)
    export_router(models / "router", trained)
    return models


@pytest.fixture
def models(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "models"))


def calibrated(models: Path, kind: Any, value: float, *, name: str = "router", on_own: bool = False) -> Calibration:
    labels, manifest = load_dataset(models / ("labels" if on_own else "others"))
    target = make_target(kind, value)
    return calibrate_threshold(models / name, models / "slm", labels, manifest, target, slm_dtype="float32")


def settings_of(models: Path, **router: Any) -> MeshSettings:
    return MeshSettings(
        slm=HomeSettings(path=models / "slm"),
        llm=TierSettings(path=models / "llm"),
        router=RouterSettings(path=models / "router", scorers={"citer": models / "citer"}, **router),
    )


def test_a_share_is_met_and_measured_on_other_problems(models: Path) -> None:
    calibration = calibrated(models, "share", 0.2)
    assert calibration.split == "halves by problem, seed 0"
    assert (calibration.calibration.num_problems, calibration.held_out.num_problems) == (60, 60)
    assert 0.199 <= calibration.calibration.share <= 0.2
    assert calibration.held_out.share == pytest.approx(0.2, abs=0.05)
    assert calibration.calibration.recall is not None
    assert calibration.calibration.recall > 0.9
    # What is told is what the scorer and its policy do.
    halves = split_by_problem(OTHERS, 0, held_out_share=0.5)
    scores = load_scorer(models / "router", models / "slm").score(
        halves.test.top_logits[:, :4].contiguous(), halves.test.hidden_states, halves.test.token_ids
    )
    sent = scores >= calibration.threshold
    assert float(sent.float().mean()) == pytest.approx(calibration.held_out.share)
    assert float(sent[halves.test.divergent > 0].float().mean()) == pytest.approx(calibration.held_out.recall)


def test_recall_and_cost_as_targets(models: Path) -> None:
    by_recall = calibrated(models, "recall", 0.9)
    assert by_recall.calibration.recall is not None
    assert 0.9 <= by_recall.calibration.recall < 0.95
    small, large = (size.num_parameters / 1e9 for size in (by_recall.slm, by_recall.llm))
    by_cost = calibrated(models, "cost", 0.75 * small + 0.25 * large)
    assert by_cost.calibration.share == pytest.approx(0.25, abs=0.001)
    # R2R's formula, with the same share.
    share = by_cost.held_out.share
    assert by_cost.held_out.cost == pytest.approx((1 - share) * small + share * large)
    for kind, value, threshold in (
        ("cost", small, 1.0),
        ("cost", large, 0.0),
        ("share", 0.0, 1.0),
        ("share", 1.0, 0.0),
    ):
        ends = calibrated(models, kind, value)
        assert ends.threshold == threshold
        assert ends.held_out.share == 1 - threshold


@pytest.mark.parametrize(
    ("kind", "value"),
    [("share", -0.1), ("share", 1.5), ("share", float("nan")), ("recall", 0.0), ("recall", 1.1), ("cost", 0.0),
     ("cost", -1.0), ("cost", float("inf"))],
)  # fmt: skip
def test_targets_out_of_range_are_refused(kind: Any, value: float) -> None:
    with pytest.raises(StartupError, match=f"--target-{kind} must be"):
        make_target(kind, value)


@pytest.mark.parametrize("value", [1e-9, 100.0])
def test_a_cost_that_no_share_has_is_refused_with_the_range(models: Path, value: float) -> None:
    with pytest.raises(StartupError, match=r"from .* the small model alone, to .*, the large model alone"):
        calibrated(models, "cost", value)


def test_labels_that_the_router_learned_from_are_not_used(models: Path) -> None:
    calibration = calibrated(models, "recall", 0.95, on_own=True)
    own = split_by_problem(LABELS, RECIPE.seed)
    assert calibration.calibration.num_tokens == len(own.validation)
    assert calibration.held_out.num_tokens == len(own.test)
    assert "own validation problems" in calibration.split
    manifest = load_scorer(models / "router", models / "slm").facts
    assert calibration.threshold == pytest.approx(manifest.threshold)
    assert calibration.score_quantiles == pytest.approx(manifest.score_quantiles)


def test_a_scorer_whose_low_scores_are_sent(models: Path) -> None:
    calibration = calibrated(models, "share", 0.3, name="citer")
    assert (calibration.scorer, calibration.features) == ("citer", ("hidden_states",))
    scorer = load_scorer(models / "citer", models / "slm")
    half = split_by_problem(OTHERS, 0, held_out_share=0.5).validation
    scores = scorer.score(torch.empty(len(half), 0), half.hidden_states, half.token_ids)
    assert float((scores < calibration.threshold).float().mean()) == pytest.approx(calibration.calibration.share)
    assert calibration.calibration.share == pytest.approx(0.3, abs=0.001)
    assert load_head("citer", models / "citer", models / "slm").manifest.weights_sha256 == calibration.weights_sha256


def test_the_file_is_the_same_for_the_same_and_reads_back(models: Path) -> None:
    place = place_beside(models / "router")
    assert place == models / "router" / "calibration.json"
    assert place_beside(models / "default_router.pt") == models / "calibration.json"
    calibration = calibrated(models, "share", 0.2)
    write_calibration(place, calibration)
    first = place.read_bytes()
    assert read_calibration(place) == calibration
    write_calibration(place, calibrated(models, "share", 0.2))
    assert place.read_bytes() == first
    content = json.loads(first)
    assert content["dataset_sha256"] == json.loads((models / "others/dataset.json").read_text())["labels_sha256"]
    assert content["target"] == {"kind": "share", "value": 0.2}


def test_the_router_tells_the_calibrated_threshold(models: Path) -> None:
    before = _describe("r2r", load_scorers(settings_of(models))["r2r"])
    own = json.loads((models / "router/manifest.json").read_text())
    assert list(before.score_quantiles) == pytest.approx(own["score_quantiles"])
    assert before.calibrated_share == pytest.approx(own["validation"]["positive_rate"])
    calibration = calibrated(models, "share", 0.2)
    write_calibration(models / "c.json", calibration)
    scorers = load_scorers(settings_of(models, calibration=models / "c.json"))
    told = _describe("r2r", scorers["r2r"])
    assert told.threshold == pytest.approx(calibration.threshold)
    assert told.threshold != pytest.approx(before.threshold)
    assert told.calibrated_share == pytest.approx(calibration.calibration.share)
    assert list(told.score_quantiles) == pytest.approx(calibration.score_quantiles)
    # Of another scorer nothing is known, and nothing said.
    citer = _describe("citer", scorers["citer"])
    assert not citer.score_quantiles
    assert not citer.HasField("calibrated_share")


def test_a_calibration_of_another_scorer_goes_to_that_one(models: Path) -> None:
    calibration = calibrated(models, "share", 0.3, name="citer")
    write_calibration(models / "c.json", calibration)
    scorers = load_scorers(settings_of(models, calibration=models / "c.json"))
    assert scorers["citer"].facts.threshold == calibration.threshold
    own = json.loads((models / "router/manifest.json").read_text())
    assert scorers["r2r"].facts.threshold == own["threshold"]


def retrained(models: Path, name: str) -> None:
    other = write_pair(models / "other", seed=4)
    shutil.rmtree(models / name)
    (other / name).rename(models / name)


CHANGES = [
    ("weights_sha256", "f" * 64, "the scorer's weights_sha256 is"),
    ("features", ["hidden_states"], r"the scorer's features is \['top_logits'"),
    ("slm.model_id", "qwen3-28x1024-596m", "the slm's model_id is"),
    ("slm.tokenizer_hash", "f" * 64, "the slm's tokenizer_hash is"),
    ("slm.embedding_sha256", "f" * 64, "the slm's embedding_sha256 is"),
    ("slm_dtype", "bfloat16", "the slm's dtype is float32, not bfloat16"),
    ("llm.model_id", "qwen3-64x5120-32.8b", "the llm's model_id is"),
    ("llm.num_parameters", 7, "the llm's num_parameters is"),
]


def edited(path: Path, key: str, value: object) -> None:
    content = json.loads(path.read_text())
    *parents, last = key.split(".")
    place = content
    for parent in parents:
        place = place[parent]
    place[last] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(("key", "value", "message"), CHANGES)
def test_a_mismatch_refuses_to_start_unless_overridden(
    models: Path, caplog: pytest.LogCaptureFixture, key: str, value: object, message: str
) -> None:
    place = models / "c.json"
    calibration = calibrated(models, "share", 0.2)
    write_calibration(place, calibration)
    edited(place, key, value)
    with pytest.raises(CheckpointError, match=f"{message}.*calibrate again.*ignore_calibration_mismatch") as caught:
        load_scorers(settings_of(models, calibration=place))
    assert caught.value.field == "router.calibration"
    with caplog.at_level(logging.WARNING):
        scorers = load_scorers(settings_of(models, calibration=place, ignore_calibration_mismatch=True))
    assert scorers["r2r"].facts.threshold == calibration.threshold
    assert "made for something else" in caplog.text


def test_another_small_model_dtype_large_model_or_router_is_noticed(models: Path) -> None:
    place = models / "c.json"
    write_calibration(place, calibrated(models, "share", 0.2))
    settings = settings_of(models, calibration=place)
    load_scorers(settings)
    half = settings.model_copy(update={"slm": settings.slm.model_copy(update={"dtype": "bfloat16"})})
    with pytest.raises(CheckpointError, match="the slm's dtype is bfloat16, not float32"):
        load_scorers(half)
    larger = settings.model_copy(update={"llm": settings.llm.model_copy(update={"path": models / "slm"})})
    with pytest.raises(CheckpointError, match="the llm's model_id is"):
        load_scorers(larger)
    # On another host than the large model there is nothing to compare with.
    away = settings.model_copy(update={"llm": settings.llm.model_copy(update={"path": models / "nowhere"})})
    load_scorers(away)
    origin_labels = synthetic(200, 0.06, seed=2)
    shutil.rmtree(models / "labels")
    origin = write_dataset(models, models / "labels", origin_labels)
    shutil.rmtree(models / "router")
    embedding = fitting_embedding(models / "slm", origin)
    export_router(models / "router", train_router(origin_labels, origin, embedding, RECIPE))
    with pytest.raises(CheckpointError, match="the scorer's weights_sha256 is"):
        load_scorers(settings)


def test_a_calibration_for_a_scorer_that_is_not_served(models: Path) -> None:
    place = models / "c.json"
    write_calibration(place, calibrated(models, "share", 0.2))
    edited(place, "scorer", "co-llm")
    with pytest.raises(CheckpointError, match="is for the scorer 'co-llm', but there are only citer, r2r"):
        load_scorers(settings_of(models, calibration=place, ignore_calibration_mismatch=True))


def test_labels_of_another_pair_are_refused(models: Path) -> None:
    retrained(models, "slm")
    with pytest.raises(CheckpointError, match="the labels were made with another model"):
        calibrated(models, "share", 0.2)


def test_labels_by_another_large_model_are_refused(models: Path) -> None:
    edited(models / "others/dataset.json", "run.llm.num_parameters", 5)
    # The manifest is not part of its own hash; its run is part of the shards'.
    labels, manifest = load_dataset(models / "others")
    with pytest.raises(CheckpointError, match="made with another large model"):
        calibrate_threshold(
            models / "router", models / "slm", labels, manifest, make_target("share", 0.2), slm_dtype="float32"
        )


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan"), "0.5", None])
def test_an_invalid_threshold_is_refused(models: Path, threshold: object) -> None:
    place = models / "c.json"
    write_calibration(place, calibrated(models, "share", 0.2))
    edited(place, "threshold", threshold)
    with pytest.raises(CheckpointError, match="damaged or no calibration: threshold"):
        load_scorers(settings_of(models, calibration=place))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path, marker: path.write_bytes(path.read_bytes()[:200]), "damaged or no calibration"),
        (lambda path, marker: path.write_bytes(b""), "damaged or no calibration"),
        (lambda path, marker: path.write_bytes(pickle.dumps(Touch(marker))), "damaged or no calibration"),
        (lambda path, marker: path.write_text("[1]"), "damaged or no calibration"),
        (lambda path, marker: path.unlink(), "cannot read .* `allroads calibrate` writes it"),
        (lambda path, marker: edited(path, "more", 1), "no calibration: more"),
        (lambda path, marker: edited(path, "version", 2), "no calibration: version"),
        (lambda path, marker: edited(path, "score_quantiles", [0.1, 0.2]), "no calibration: score_quantiles"),
        (lambda path, marker: edited(path, "score_quantiles", [0.2] * 18 + [0.1]), "no calibration: score_quantiles"),
        (lambda path, marker: edited(path, "target", {"kind": "recall"}), "no calibration: target.value"),
    ],
)
def test_a_damaged_calibration_is_refused_and_runs_nothing(
    models: Path, damage: Callable[[Path, Path], None], message: str
) -> None:
    place, marker = models / "c.json", models / "marker"
    write_calibration(place, calibrated(models, "share", 0.2))
    damage(place, marker)
    with pytest.raises(CheckpointError, match=message):
        load_scorers(settings_of(models, calibration=place, ignore_calibration_mismatch=True))
    assert not marker.exists()


def test_each_missing_key_is_named(models: Path) -> None:
    place = models / "c.json"
    write_calibration(place, calibrated(models, "share", 0.2))
    whole = json.loads(place.read_text())
    optional = {"format", "version", "feature_dtype"}
    for key in whole.keys() - optional:
        place.write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
        with pytest.raises(CheckpointError, match=f"no calibration: {key}: Field required"):
            read_calibration(place)


def test_a_calibration_can_be_configured(tmp_path: Path) -> None:
    config = tmp_path / "mesh.yaml"
    config.write_text("router:\n  calibration: here.json\n  ignore_calibration_mismatch: true\n")
    router = load_settings(config).router
    assert (router.calibration, router.ignore_calibration_mismatch) == (Path("here.json"), True)
    assert RouterSettings(path=tmp_path).calibration is None


def test_where_nothing_can_be_written(models: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write .*name another place with --out"):
        write_calibration(models / "missing" / "c.json", calibrated(models, "share", 0.2))
    assert not (models / "missing").exists()

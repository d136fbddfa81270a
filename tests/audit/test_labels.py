"""Answers of a person become rows like those that were labelled by a judge."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random

import pytest
import torch
from allroads.audit.review_labels import Merged, merge_reviewed
from allroads.audit.review_queue import Answer, Item, ReviewQueue
from allroads.cli.main import app
from allroads.errors import CheckpointError, StartupError
from allroads.labelling.dataset import (
    Counts,
    DatasetManifest,
    EngineDescription,
    RunDescription,
    ShardEntry,
    labels_hash,
    load_dataset,
    load_manifest,
    write_part,
)
from allroads.labelling.settings import LabelSettings
from allroads.labelling.shards import Rows, ShardCounts, read_shard, shard_name, write_shard
from allroads.labelling.statistics import measure
from allroads.model_identity import identify_model
from allroads.router.embedding import embedding_hash, load_embedding
from allroads.router.manifest import MadeFor, MadeForSlm
from allroads.training.dataset import Kind
from allroads.training.generation import prefill
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from ..training.small_pair import NUM_TOP_LOGITS, WIDTHS, write_pair

NUM_ROWS = 12
_Answered = Sequence[tuple[Item, Answer]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def dataset(models: Path, tmp_path: Path) -> Path:
    """Two answers of six tokens each, all identical."""
    directory = tmp_path / "dataset"
    directory.mkdir()
    engine = EngineDescription(
        device="cpu", dtype="float32", num_threads=1, num_kv_tokens=64, block_size_tokens=16, max_running=2,
        shares_prefixes=True,
    )  # fmt: skip
    slm, llm = (identify_model(models / name) for name in ("slm", "llm"))
    run = RunDescription(
        slm=MadeForSlm(**asdict(slm), embedding_sha256=embedding_hash(load_embedding(models / "slm"))),
        llm=MadeFor(**asdict(llm)),
        llm_embedding_sha256="0" * 64,
        hidden_size=WIDTHS["slm"],
        source="made for a test",
        problem_seed=0,
        prompts_sha256="0" * 64,
        num_asked=2,
        settings=LabelSettings(num_top_logits=NUM_TOP_LOGITS),
        slm_engine=engine,
        llm_engine=engine,
    )
    rows = Rows(
        problems=torch.arange(2).repeat_interleave(NUM_ROWS // 2),
        problem_ids=["a"] * 6 + ["b"] * 6,
        positions=torch.arange(6, dtype=torch.int32).repeat(2),
        token_ids=torch.full((NUM_ROWS,), 5, dtype=torch.int32),
        proposals=torch.full((NUM_ROWS,), 5, dtype=torch.int32),
        kinds=torch.zeros(NUM_ROWS, dtype=torch.uint8),
        entropies=torch.ones(NUM_ROWS),
        top_logits=torch.zeros(NUM_ROWS, NUM_TOP_LOGITS),
        hidden_states=torch.zeros(NUM_ROWS, WIDTHS["slm"]),
    )
    counts = ShardCounts(
        run_sha256=run.sha256, index=0, num_asked=2, num_finished=2, num_unfinished=0, num_failed=0
    )  # fmt: skip
    path = directory / shard_name(0)
    write_shard(path, rows, counts)
    shard = read_shard(path, num_top_logits=NUM_TOP_LOGITS, hidden_size=WIDTHS["slm"])
    manifest = DatasetManifest(
        run=run,
        labels_sha256=labels_hash([shard.sha256]),
        counts=Counts(num_finished=2, num_unfinished=0, num_failed=0),
        statistics=measure([shard]),
        shards=(ShardEntry(name=path.name, sha256=shard.sha256, num_rows=NUM_ROWS),),
    )
    write_part(directory / "dataset.json", manifest)
    return directory


def item(request: int, position: int, *, is_whole: bool = True, large: int | None = 30) -> Item:
    chance = Random(100 * request + position)
    return Item(
        id=f"run/{request}/{position}",
        policy="r2r",
        threshold=0.5,
        score=0.4,
        routed=False,
        proposal=chance.randrange(400),
        large=large,
        context=tuple(chance.randrange(400) for _ in range(5 + position)),
        is_whole=is_whole,
    )


def queue_of(path: Path, answered: _Answered, unanswered: Sequence[Item] = ()) -> Path:
    with ReviewQueue(path) as queue:
        queue.add([*(one for one, _ in answered), *unanswered])
        for one, answer in answered:
            queue.answer(one, answer)
    return path


def merge(queue: Path, dataset: Path, slm: Path, out: Path) -> Merged:
    with ReviewQueue(queue) as opened:
        return merge_reviewed(opened, dataset, slm, out)


def test_answers_are_rows_beside_those_of_the_dataset(models: Path, dataset: Path, tmp_path: Path) -> None:
    answered = [
        (item(2, 3), Answer.DIVERGENT),
        (item(1, 7), Answer.NEUTRAL),
        (item(1, 2), Answer.SAME),
        (item(3, 0), Answer.SKIP),
        (item(4, 1, is_whole=False), Answer.DIVERGENT),
        (item(5, 0, large=None), Answer.NEUTRAL),
        # Corrected.
        (item(5, 0, large=None), Answer.DIVERGENT),
    ]
    queue = queue_of(tmp_path / "queue", answered, [item(6, 0)])
    merged = merge(queue, dataset, models / "slm", tmp_path / "out")
    assert (merged.num_added, merged.num_cut, merged.num_skipped) == (4, 1, 2)

    labels, manifest = load_dataset(tmp_path / "out")
    assert len(labels) == NUM_ROWS + 4
    # By request and position; decisions of one request are one problem.
    wanted = [item(1, 2), item(1, 7), item(2, 3), item(5, 0, large=None)]
    assert labels.kinds[NUM_ROWS:].tolist() == [Kind.IDENTICAL, Kind.NEUTRAL, Kind.DIVERGENT, Kind.DIVERGENT]
    assert labels.problem_ids.tolist() == [0] * 6 + [1] * 6 + [2, 2, 3, 4]
    assert labels.token_ids[NUM_ROWS:].tolist() == [one.proposal for one in wanted]
    model = AutoModelForCausalLM.from_pretrained(models / "slm", use_safetensors=True).eval()
    for row, one in enumerate(wanted, NUM_ROWS):
        (read,) = prefill(model, [one.context], [[one.proposal]], NUM_TOP_LOGITS)
        torch.testing.assert_close(labels.top_logits[row], read.top_logits[0])
        torch.testing.assert_close(labels.hidden_states[row], read.hidden_states[0])

    assert manifest.source.startswith("made for a test; and 4 tokens judged by a person")
    assert (manifest.statistics.num_divergent, manifest.statistics.num_neutral) == (2, 1)
    assert manifest.counts.num_finished == 5
    assert manifest.labels_sha256 != load_manifest(dataset).labels_sha256
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]


def test_the_dataset_itself_stays_as_it_is_and_the_result_is_always_the_same(
    models: Path, dataset: Path, tmp_path: Path
) -> None:
    before = {path.name: path.read_bytes() for path in dataset.iterdir()}
    queue = queue_of(tmp_path / "queue", [(item(1, 1), Answer.NEUTRAL), (item(2, 1), Answer.DIVERGENT)])
    hashes = []
    for name in ("a", "b"):
        merge(queue, dataset, models / "slm", tmp_path / name)
        files = sorted((tmp_path / name).iterdir())
        hashes.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
    assert hashes[0] == hashes[1]
    assert {path.name: path.read_bytes() for path in dataset.iterdir()} == before


def test_labels_may_be_added_to_what_was_merged(models: Path, dataset: Path, tmp_path: Path) -> None:
    first = queue_of(tmp_path / "first", [(item(1, 1), Answer.NEUTRAL)])
    second = queue_of(tmp_path / "second", [(item(1, 2), Answer.DIVERGENT)])
    merge(first, dataset, models / "slm", tmp_path / "once")
    merge(second, tmp_path / "once", models / "slm", tmp_path / "twice")
    labels, _ = load_dataset(tmp_path / "twice")
    assert labels.kinds[NUM_ROWS:].tolist() == [Kind.NEUTRAL, Kind.DIVERGENT]
    assert labels.problem_ids[NUM_ROWS:].tolist() == [2, 3]


def test_contexts_that_were_cut_become_no_labels(models: Path, dataset: Path, tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "queue", [(item(1, 1, is_whole=False), Answer.NEUTRAL)])
    with pytest.raises(StartupError, match=r"of 1 the log did not keep the whole context.*slm\.decisions_context"):
        merge(queue, dataset, models / "slm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_model_is_refused(dataset: Path, tmp_path: Path) -> None:
    other = write_pair(tmp_path / "other", seed=5)
    queue = queue_of(tmp_path / "queue", [(item(1, 1), Answer.NEUTRAL)])
    with pytest.raises(CheckpointError, match="were made with another model than"):
        merge(queue, dataset, other / "slm", tmp_path / "out")


def test_nothing_is_written_over(models: Path, dataset: Path, tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "queue", [(item(1, 1), Answer.NEUTRAL)])
    with pytest.raises(StartupError, match="exists already"):
        merge(queue, dataset, models / "slm", dataset)


def test_the_command_says_what_became_of_the_answers(models: Path, dataset: Path, tmp_path: Path) -> None:
    queue = queue_of(
        tmp_path / "queue", [(item(1, 1), Answer.NEUTRAL), (item(1, 2, is_whole=False), Answer.NEUTRAL)], [item(2, 2)]
    )
    options = {"queue": queue, "dataset": dataset, "slm": models / "slm", "out": tmp_path / "out"}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    result = CliRunner().invoke(app, ["audit", "labels", *arguments])
    assert result.exit_code == 0, result.output
    assert "1 answers became labels" in result.output
    assert "1 were left out because the log cut their context, 1 have no answer" in result.output

"""Datasets on disk: what is written is read, what is damaged is refused by name, and nothing in it is run (C48)."""

import json
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from allroads.errors import CheckpointError
from allroads.labelling.dataset import DatasetManifest, RunDescription, load_dataset, write_part
from allroads.labelling.run import _finish
from allroads.labelling.shards import NO_LABEL, Rows, ShardCounts, read_shard, shard_name, write_shard
from allroads.labelling.statistics import measure
from allroads.training.dataset import Kind, LabelSet, split_by_problem

from ..router.test_checkpoint import Touch

K, HIDDEN = 4, 6
HASH = "0" * 64


def describe(num_asked: int = 6, **settings: Any) -> RunDescription:
    model = {"model_id": "m", "num_parameters": 1, "tokenizer_hash": HASH}
    engine = {
        "device": "cpu", "dtype": "float32", "num_threads": 1, "num_kv_tokens": 64, "block_size_tokens": 16,
        "max_running": 4, "shares_prefixes": True,
    }  # fmt: skip
    return RunDescription.model_validate(
        {
            "slm": {**model, "embedding_sha256": HASH}, "llm": model, "llm_embedding_sha256": HASH,
            "hidden_size": HIDDEN, "source": "a test", "problem_seed": 3, "prompts_sha256": HASH,
            "num_asked": num_asked, "settings": {"num_top_logits": K, "problems_per_shard": 3, **settings},
            "slm_engine": engine, "llm_engine": engine,
        }
    )  # fmt: skip


def rows_of(lengths: dict[int, int], kinds: list[int] | None = None, seed: int = 0) -> Rows:
    """Random rows for problems by number and answer length."""
    torch.manual_seed(seed)
    n = sum(lengths.values())
    return Rows(
        problems=torch.tensor([number for number, length in lengths.items() for _ in range(length)], dtype=torch.int64),
        problem_ids=[f"p{number}" for number, length in lengths.items() for _ in range(length)],
        positions=torch.tensor([i for length in lengths.values() for i in range(length)], dtype=torch.int32),
        token_ids=torch.randint(0, 9, (n,), dtype=torch.int32),
        proposals=torch.randint(0, 9, (n,), dtype=torch.int32),
        kinds=torch.tensor(kinds if kinds is not None else [i % 3 for i in range(n)], dtype=torch.uint8),
        entropies=torch.rand(n),
        top_logits=torch.randn(n, K),
        hidden_states=torch.randn(n, HIDDEN),
    )


def counts_of(index: int, run: RunDescription) -> ShardCounts:
    return ShardCounts(
        run_sha256=run.sha256, index=index, num_asked=3, num_finished=2, num_unfinished=1, num_failed=0
    )  # fmt: skip


FIRST = rows_of({0: 3, 2: 2}, [0, 1, 2, NO_LABEL, 0])
SECOND = rows_of({3: 1, 4: 1, 5: 4}, [NO_LABEL, 2, 0, 0, 1, NO_LABEL], seed=1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    run = describe()
    for index, rows in enumerate((FIRST, SECOND)):
        write_shard(tmp_path / shard_name(index), rows, counts_of(index, run))
    _finish(tmp_path, run)
    return tmp_path


def test_what_is_written_is_read(directory: Path) -> None:
    labels, manifest = load_dataset(directory)
    kept = [torch.tensor([0, 1, 2, 4]), torch.tensor([1, 2, 3, 4])]
    for name, field in (("top_logits",) * 2, ("hidden_states",) * 2, ("kinds",) * 2, ("proposals", "token_ids")):
        wanted = torch.cat([getattr(rows, name)[own] for rows, own in zip((FIRST, SECOND), kept, strict=True)])
        assert torch.equal(getattr(labels, field), wanted.to(getattr(labels, field).dtype)), field
    # Problem 1 was not finished, and of 3 nothing is labelled.
    assert labels.problem_ids.tolist() == [0, 0, 0, 1, 2, 3, 3, 3]
    assert (labels.top_logits.dtype, labels.hidden_states.dtype) == (torch.float32, torch.float32)
    assert (labels.token_ids.dtype, labels.kinds.dtype) == (torch.int64, torch.uint8)
    assert (manifest.num_asked, manifest.counts.num_finished, manifest.counts.num_unfinished) == (6, 4, 2)
    assert (manifest.problem_seed, manifest.run.num_top_logits, manifest.run.judge.kind) == (3, K, "same-continuation")
    assert manifest.statistics.num_unlabelled == 3
    # Features can be learned from.
    (labels.hidden_states.requires_grad_() * 1.0).sum().backward()
    assert split_by_problem(LabelSet(*(getattr(labels, f) for f in LabelSet.__match_args__)), 0).train.num_problems


def test_an_empty_shard_and_one_without_labels(tmp_path: Path) -> None:
    run = describe()
    write_shard(tmp_path / shard_name(0), rows_of({}), counts_of(0, run))
    write_shard(tmp_path / shard_name(1), rows_of({3: 2}, [NO_LABEL] * 2), counts_of(1, run))
    manifest = _finish(tmp_path, run)
    assert (manifest.statistics.num_tokens, manifest.statistics.entropy_ratio) == (2, None)
    with pytest.raises(CheckpointError, match="no labelled row"):
        load_dataset(tmp_path)


def rewritten(path: Path, change: Callable[[Any], Any]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def with_column(table: Any, name: str, values: Any) -> Any:
    return table.set_column(table.schema.names.index(name), name, values).replace_schema_metadata(table.schema.metadata)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.drop_columns(["entropy"]), "column entropy is missing"),
        (lambda t: t.append_column("more", t.column("kind")), "columns that labels do not have: more"),
        (lambda t: with_column(t, "kind", t.column("kind").cast(pa.int64())), "column kind is int64"),
        (lambda t: with_column(t, "proposal", pa.array([None] * len(t), pa.int32())), "proposal has empty places"),
        (
            lambda t: with_column(t, "top_logits", pa.FixedSizeListArray.from_arrays(t["entropy"].combine_chunks(), 1)),
            "column top_logits is",
        ),
        (lambda t: t.replace_schema_metadata({}), "no file of labels"),
        (lambda t: t.replace_schema_metadata({b"allroads": b'{"index": 0, "extra": 1}'}), "no file of labels"),
        (lambda t: t.slice(1), "is not the file that dataset.json was written for"),
    ],
)
def test_other_content_is_refused(change: Callable[[Any], Any], named: str, directory: Path) -> None:
    path = directory / shard_name(0)
    rewritten(path, change)
    with pytest.raises(CheckpointError) as refusal:
        load_dataset(directory)
    assert named in str(refusal.value)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (rows_of({0: 2}, [0, 7]), "column kind must hold"),
        (Rows(**{f: getattr(FIRST, f) for f in Rows.__match_args__ if f != "hidden_states"},
              hidden_states=torch.full((5, HIDDEN), float("nan"))), "hidden_state has numbers that are not finite"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_refused(rows: Rows, named: str, tmp_path: Path) -> None:
    run = describe(num_asked=3)
    write_shard(tmp_path / shard_name(0), rows, counts_of(0, run))
    _finish(tmp_path, run)
    with pytest.raises(CheckpointError, match=rf"rows-00000\.parquet: column {named.removeprefix('column ')}"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_truncated_files_are_refused(length: int, directory: Path) -> None:
    path = directory / shard_name(1)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"rows-00001\.parquet is missing, damaged"):
        load_dataset(directory)


def test_a_flipped_bit_anywhere_is_refused(directory: Path) -> None:
    path = directory / shard_name(0)
    content = bytearray(path.read_bytes())
    for place in range(4, len(content) - 8, len(content) // 25):
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"rows-00000\.parquet"):
            load_dataset(directory)
        content[place] ^= 1


def test_a_pickle_in_place_of_a_shard_or_the_manifest_runs_nothing(directory: Path) -> None:
    marker = directory / "marker"
    for name in (shard_name(0), "dataset.json"):
        (directory / name).write_bytes(pickle.dumps(Touch(marker)))
        with pytest.raises(CheckpointError, match=name):
            load_dataset(directory)
    assert not marker.exists()


def test_shards_that_are_missing_or_swapped(directory: Path) -> None:
    first, second = directory / shard_name(0), directory / shard_name(1)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    with pytest.raises(CheckpointError, match=r"rows-00000\.parquet is not the file"):
        load_dataset(directory)
    first.unlink()
    with pytest.raises(CheckpointError, match=r"rows-00000\.parquet is missing"):
        load_dataset(directory)


@pytest.mark.parametrize(
    ("key", "value"),
    [("labels_sha256", "1" * 64), ("version", 2), ("more", 1), ("format", "allroads-labels"), ("shards", [])],
)
def test_a_wrong_manifest_is_refused(key: str, value: object, directory: Path) -> None:
    path = directory / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(CheckpointError, match=r"dataset\.json") as refusal:
        load_dataset(directory)
    assert key in {refusal.value.field, "labels_sha256", "shards"}


def test_a_shard_name_cannot_leave_the_directory(directory: Path) -> None:
    path = directory / "dataset.json"
    path.write_text(path.read_text().replace("rows-00000.parquet", "../rows-00000.parquet"))
    with pytest.raises(CheckpointError, match=r"shards\.0\.name"):
        load_dataset(directory)


def test_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no dataset\.json"):
        load_dataset(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has not ended"):
        load_dataset(tmp_path)


def test_statistics(tmp_path: Path) -> None:
    rows = rows_of({0: 10}, [2, 2, 0, 1, 0, 0, 0, 0, NO_LABEL, 0])
    rows = Rows(**{
        **{name: getattr(rows, name) for name in Rows.__match_args__},
        # Token 5 twice and rare, 7 eight times, one of them without a label.
        "token_ids": torch.tensor([5, 7, 5, 7, 7, 7, 7, 7, 7, 7], dtype=torch.int32),
        "entropies": torch.tensor([2.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0, 1.0]),
    })  # fmt: skip
    run = describe(num_asked=1)
    write_shard(tmp_path / shard_name(0), rows, counts_of(0, run))
    found = measure([read_shard(tmp_path / shard_name(0), num_top_logits=K, hidden_size=HIDDEN)])
    assert (found.num_tokens, found.num_identical, found.num_neutral, found.num_divergent) == (10, 6, 1, 2)
    assert found.num_unlabelled == 1
    assert (found.divergent_entropy, found.other_entropy, found.entropy_ratio) == (3.0, 1.0, 3.0)
    assert [found.share(kind) for kind in Kind] == pytest.approx([6 / 9, 1 / 9, 2 / 9])
    rare, often = found.by_frequency
    assert (rare.num_tokens, rare.num_distinct, rare.least, rare.most, rare.divergent_share) == (2, 1, 2, 2, 0.5)
    assert (often.num_tokens, often.least) == (7, 7)
    assert often.divergent_share == pytest.approx(1 / 7)


def test_quantiles_hold_about_a_fifth_each(tmp_path: Path) -> None:
    run = describe(num_asked=1)
    rows = rows_of({0: 1000})
    torch.manual_seed(0)
    tokens = (torch.rand(1000) ** 2 * 200).int()
    rows = Rows(**{**{name: getattr(rows, name) for name in Rows.__match_args__}, "token_ids": tokens})
    write_shard(tmp_path / shard_name(0), rows, counts_of(0, run))
    found = measure([read_shard(tmp_path / shard_name(0), num_top_logits=K, hidden_size=HIDDEN)]).by_frequency
    assert len(found) == 5
    assert sum(part.num_tokens for part in found) == 1000
    assert sum(part.num_distinct for part in found) == len(np.unique(tokens.numpy()))
    assert all(150 < part.num_tokens < 250 for part in found)
    assert all(part.most <= following.least for part, following in pairwise(found))


def test_the_manifest_comes_back_as_it_was(directory: Path) -> None:
    manifest = load_dataset(directory)[1]
    write_part(directory / "again.json", manifest)
    assert DatasetManifest.model_validate_json((directory / "again.json").read_bytes()) == manifest
    assert manifest.source.endswith("judge same-continuation")

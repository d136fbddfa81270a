"""A directory of labels: `rows-00000.parquet` and so on, and `dataset.json`, which is written last."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field, ValidationError

from ..errors import CheckpointError
from ..router.manifest import MadeFor, MadeForSlm, Part, Sha256
from ..training.dataset import Kind, LabelSet
from .settings import JudgeSettings, LabelSettings
from .shards import NO_LABEL, UNFINISHED, Shard, read_shard
from .statistics import Statistics

MANIFEST_FILE, STATE_FILE = "dataset.json", "state.json"

Number = Annotated[int, Field(ge=0)]


class EngineDescription(Part):
    """How a model was run. In exact arithmetic none of it would change a label; rounding differs."""

    device: str
    dtype: str
    num_threads: int
    num_kv_tokens: int
    block_size_tokens: int
    max_running: int
    shares_prefixes: bool


class RunDescription(Part):
    """All that decides the rows of a dataset."""

    version: Literal[1] = 1
    slm: MadeForSlm
    llm: MadeFor
    llm_embedding_sha256: Sha256
    """Another training of the same shape is another model."""
    hidden_size: int
    """Of the small model."""
    source: str
    """Where the problems came from, in words."""
    problem_seed: int
    """Of generated problems; 0 for those of a file."""
    prompts_sha256: Sha256
    """Of the file of problems, or of the text of generated ones."""
    num_asked: Number
    settings: LabelSettings
    slm_engine: EngineDescription
    llm_engine: EngineDescription

    @property
    def judge(self) -> JudgeSettings:
        """Who judged."""
        return self.settings.judge

    @property
    def num_top_logits(self) -> int:
        """How many logits each row has."""
        return self.settings.num_top_logits

    @property
    def num_shards(self) -> int:
        """How many files the rows are in."""
        return -(-self.num_asked // self.settings.problems_per_shard)

    @property
    def sha256(self) -> str:
        """Tells runs apart."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class RunState(Part):
    """`state.json`: whose shards lie in a directory before they are complete."""

    format: Literal["allroads-labelling"] = "allroads-labelling"
    run: RunDescription


class ShardEntry(Part):
    """One file of rows."""

    name: Annotated[str, Field(pattern=r"^rows-\d{5,}\.parquet$")]
    sha256: Sha256
    num_rows: Number


class Counts(Part):
    """What became of the problems."""

    num_finished: Number
    num_unfinished: Number
    num_failed: Number


class DatasetManifest(Part):
    """`dataset.json`: what the rows were made from, by whom, and how the labels are spread."""

    format: Literal["allroads-dataset"] = "allroads-dataset"
    version: Literal[1] = 1
    run: RunDescription
    labels_sha256: Sha256
    """Of the hashes of the shards, in order."""
    counts: Counts
    statistics: Statistics
    shards: tuple[ShardEntry, ...]

    @property
    def slm(self) -> MadeForSlm:
        """The small model."""
        return self.run.slm

    @property
    def llm(self) -> MadeFor:
        """The large model."""
        return self.run.llm

    @property
    def source(self) -> str:
        """Where the problems came from, and who labelled."""
        return f"{self.run.source}; answers and continuations by the llm, greedy; judge {self.run.judge.kind}"

    @property
    def problem_seed(self) -> int:
        """Of generated problems; 0 for those of a file."""
        return self.run.problem_seed

    @property
    def num_asked(self) -> int:
        """Problems put to the large model."""
        return self.run.num_asked


def load_dataset(directory: Path) -> tuple[LabelSet, DatasetManifest]:
    """The labelled rows of a finished dataset; rows without a label are left out, problems counted from 0.

    Raises:
        CheckpointError: the dataset is not finished, or a file is missing, damaged or of another dataset; the message
            names the file.
        StartupError: pyarrow is missing.
    """
    manifest = load_manifest(directory)
    parts = [_labelled(shard) for shard in read_shards(directory, manifest)]
    labels = LabelSet(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
    if not len(labels):
        raise CheckpointError(f"{directory} has no labelled row: see what {MANIFEST_FILE} counts")
    problem_ids = labels.problem_ids.unique(return_inverse=True)[1]
    return (
        LabelSet(problem_ids, labels.top_logits, labels.hidden_states, labels.token_ids, labels.kinds),
        manifest,
    )


def load_manifest(directory: Path) -> DatasetManifest:
    """Read `dataset.json`.

    Raises:
        CheckpointError: the dataset is not finished, or the file is damaged.
    """
    path = directory / MANIFEST_FILE
    if not path.is_file():
        if (directory / STATE_FILE).is_file():
            raise CheckpointError(f"the labelling in {directory} has not ended: run `allroads label` again to go on")
        raise CheckpointError(f"no {MANIFEST_FILE} in {directory}: the path must be what `allroads label` wrote")
    return read_part(path, DatasetManifest)


def load_shards(directory: Path, manifest: DatasetManifest) -> list[Shard]:
    """The files of a dataset, all in memory.

    Raises:
        CheckpointError: as `load_dataset`.
    """
    return list(read_shards(directory, manifest))


def read_shards(directory: Path, manifest: DatasetManifest) -> Iterator[Shard]:
    """The files of a dataset one by one, each seen to be the one that its manifest was written for.

    Raises:
        CheckpointError: as `load_dataset`.
    """
    if labels_hash([entry.sha256 for entry in manifest.shards]) != manifest.labels_sha256:
        raise CheckpointError(f"{directory / MANIFEST_FILE} is damaged: its shards do not have the hash that it names")
    run = manifest.run
    for entry in manifest.shards:
        path = directory / entry.name
        shard = read_shard(path, num_top_logits=run.num_top_logits, hidden_size=run.hidden_size)
        if shard.sha256 != entry.sha256 or shard.table.num_rows != entry.num_rows:
            raise CheckpointError(f"{path} is not the file that {MANIFEST_FILE} was written for")
        yield shard


def labels_hash(shard_hashes: Sequence[str]) -> str:
    """One hash for the files of a dataset."""
    return hashlib.sha256("".join(shard_hashes).encode()).hexdigest()


_Part = TypeVar("_Part", bound=Part)


def read_part(path: Path, kind: type[_Part]) -> _Part:
    """Read one of our JSON files.

    Raises:
        CheckpointError: it is damaged or of another kind; the message names the file and the key.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"])) or "the file"
        raise CheckpointError(f"{path} is damaged or of another kind: {key}: {problem['msg']}", field=key) from error


def write_part(path: Path, part: Part) -> None:
    """Write one of our JSON files, whole or not at all."""
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.write_text(part.model_dump_json(indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _labelled(shard: Shard) -> tuple[torch.Tensor, ...]:
    """The columns of a `LabelSet`, in its order, without rows that have no label."""
    kinds = shard.tensor("kind")
    kept = kinds != NO_LABEL
    if bool((kinds[kept] > max(Kind)).any()):
        raise CheckpointError(f"{shard.path}: column kind must hold 0, 1, 2 or nothing", field="kind")
    columns = {name: shard.tensor(name)[kept] for name in ("problem", "top_logits", "hidden_state", "proposal")}
    for name in ("top_logits", "hidden_state"):
        if not bool(columns[name].isfinite().all()):
            raise CheckpointError(f"{shard.path}: column {name} has numbers that are not finite", field=name)
    return (
        columns["problem"],
        columns["top_logits"],
        columns["hidden_state"],
        columns["proposal"].to(torch.int64),
        kinds[kept],
    )

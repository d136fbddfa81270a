"""Rows of labelled tokens in Parquet files, each written whole or not at all. Nothing is ever unpickled."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from ..errors import CheckpointError, StartupError
from ..router.manifest import Part, Sha256

NO_LABEL = 255
"""In `Rows.kinds`, where the judge gave no label; null in the file."""
UNFINISHED = ".part"
"""Ends the name of a file that is being written."""
_METADATA = b"allroads"
_REPEATED = ["problem", "problem_id", "token", "proposal", "kind"]
"""Columns with few values, which a dictionary makes small."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One row for each token of some answers, problem after problem."""

    problems: Tensor
    """int64 [n], place of the problem among all that were asked."""
    problem_ids: list[str]
    """[n], what the prompts' file calls it."""
    positions: Tensor
    """int32 [n], place in the answer."""
    token_ids: Tensor
    """int32 [n], what the large model wrote there."""
    proposals: Tensor
    """int32 [n], what the small model would have written."""
    kinds: Tensor
    """uint8 [n], as `training.dataset.Kind`, or `NO_LABEL`."""
    entropies: Tensor
    """float32 [n], nats, of the small model's distribution."""
    top_logits: Tensor
    """float32 [n, k], the small model's largest, raw, largest first."""
    hidden_states: Tensor
    """float32 [n, hidden], the small model's after the final norm."""

    def __len__(self) -> int:
        return len(self.problems)


class ShardCounts(Part):
    """What became of the problems of a shard."""

    run_sha256: Sha256
    """Of the description of the run that it belongs to."""
    index: int
    num_asked: int
    num_finished: int
    num_unfinished: int
    """Answers that came to no end within `max_answer_tokens`."""
    num_failed: int
    """Problems at which a model gave numbers that are none."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A file, and what it says of itself."""

    path: Path
    sha256: str
    counts: ShardCounts
    table: Any
    """pyarrow.Table"""

    def column(self, name: str) -> Any:
        """A column of single values as a numpy array; without labels `NO_LABEL`."""
        column = self.table.column(name)
        return (column.fill_null(NO_LABEL) if name == "kind" else column).to_numpy()

    def tensor(self, name: str) -> Tensor:
        """A column as a tensor [n] or, of lists, [n, size], in memory of its own."""
        column = self.table.column(name)
        if not hasattr(column.type, "list_size"):
            return torch.tensor(self.column(name))
        values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return torch.tensor(values).view(len(column), column.type.list_size)


def shard_name(index: int) -> str:
    """File name of a shard."""
    return f"rows-{index:05d}.parquet"


def write_shard(path: Path, rows: Rows, counts: ShardCounts) -> None:
    """Write a shard; under its name there is never half a file.

    Raises:
        StartupError: pyarrow is missing.
    """
    pa = _arrow()
    schema = _schema(rows.top_logits.shape[1], rows.hidden_states.shape[1])
    columns = [
        pa.array(rows.problems.numpy()),
        pa.array(rows.problem_ids, pa.string()),
        pa.array(rows.positions.numpy()),
        pa.array(rows.token_ids.numpy()),
        pa.array(rows.proposals.numpy()),
        pa.array(rows.kinds.numpy(), mask=(rows.kinds == NO_LABEL).numpy()),
        pa.array(rows.entropies.numpy()),
        _lists(rows.top_logits),
        _lists(rows.hidden_states),
    ]
    table = pa.Table.from_arrays(columns, schema=schema.with_metadata({_METADATA: counts.model_dump_json().encode()}))
    part = path.with_name(path.name + UNFINISHED)
    with part.open("wb") as file:
        pa.parquet.write_table(table, file, compression="zstd", use_dictionary=_REPEATED)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_shard(path: Path, *, num_top_logits: int, hidden_size: int) -> Shard:
    """Read a shard and check that it is one.

    Raises:
        CheckpointError: the file is missing, damaged, or holds something else; the message names it.
        StartupError: pyarrow is missing.
    """
    pa = _arrow()
    try:
        content = path.read_bytes()
        table = pa.parquet.ParquetFile(pa.BufferReader(content)).read()
        metadata = (table.schema.metadata or {}).get(_METADATA, b"")
        counts = ShardCounts.model_validate_json(metadata)
    except (OSError, pa.ArrowException, ValidationError) as error:
        raise CheckpointError(f"{path} is missing, damaged, or no file of labels: {error}") from error
    expected = _schema(num_top_logits, hidden_size)
    for field in expected:
        its = table.schema.field(field.name).type if field.name in table.schema.names else "missing"
        if its != field.type:
            raise CheckpointError(f"{path}: column {field.name} is {its}, not {field.type}", field=field.name)
        if field.name != "kind" and table.column(field.name).null_count:
            raise CheckpointError(f"{path}: column {field.name} has empty places", field=field.name)
    if more := set(table.schema.names) - set(expected.names):
        raise CheckpointError(f"{path} has columns that labels do not have: {', '.join(sorted(more))}")
    return Shard(path, hashlib.sha256(content).hexdigest(), counts, table)


def require_arrow() -> None:
    """See that Parquet files can be read and written.

    Raises:
        StartupError: pyarrow is missing.
    """
    _arrow()


def _schema(num_top_logits: int, hidden_size: int) -> Any:
    pa = _arrow()
    return pa.schema([
        ("problem", pa.int64()),
        ("problem_id", pa.string()),
        ("position", pa.int32()),
        ("token", pa.int32()),
        ("proposal", pa.int32()),
        ("kind", pa.uint8()),
        ("entropy", pa.float32()),
        ("top_logits", pa.list_(pa.float32(), num_top_logits)),
        ("hidden_state", pa.list_(pa.float32(), hidden_size)),
    ])  # fmt: skip


def _lists(matrix: Tensor) -> Any:
    """float32 [n, size] as n lists of a fixed size."""
    pa = _arrow()
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.contiguous().view(-1).numpy()), matrix.shape[1])


def _arrow() -> Any:
    # Late: only those who label or train need it.
    try:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise StartupError(
            "labels are Parquet files, for which pyarrow is missing: pip install 'allroads[lifecycle]'"
        ) from error
    return pa

"""The directory of a run: whose it is, what is done, and that no two processes work in it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, StartupError
from ..router.manifest import Part
from .dataset import MANIFEST_FILE, STATE_FILE, RunDescription, RunState, read_part, write_part
from .report import REPORT_FILE
from .shards import UNFINISHED, Shard, read_shard, shard_name

_NUM_DIFFERENCES = 3
"""Told of a state that is another's."""


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold a directory, which is made if need be, against other runs; the system lets go of it with the process.

    Raises:
        StartupError: another process holds it, or it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StartupError(f"cannot write to {directory}: {error.strerror}", field="out") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise StartupError(
            f"another process is labelling in {directory}; wait for it or stop it", field="out"
        ) from None
    try:
        yield
    finally:
        os.close(handle)


def clear(directory: Path) -> None:
    """Remove what runs write, and nothing else. The state goes last, so that a rest is never taken for another's."""
    for path in (*sorted(directory.glob("rows-*.parquet")), *sorted(directory.glob(f"*{UNFINISHED}"))):
        path.unlink()
    for name in (MANIFEST_FILE, REPORT_FILE, STATE_FILE):
        (directory / name).unlink(missing_ok=True)


def claim(directory: Path, description: RunDescription) -> None:
    """Write whose directory it is, or see that it is this run's.

    Raises:
        StartupError: it is another's; the message says in what that differs.
    """
    path = directory / STATE_FILE
    if path.is_file():
        there = _flat(read_part(path, RunState).run)
        here = _flat(description)
        different = [key for key in sorted(there.keys() | here.keys()) if there.get(key) != here.get(key)]
        if different:
            told = "; ".join(
                f"{key} is {there.get(key)} there and {here.get(key)} here" for key in different[:_NUM_DIFFERENCES]
            )
            more = f", and {len(different) - _NUM_DIFFERENCES} more" if len(different) > _NUM_DIFFERENCES else ""
            raise StartupError(
                f"{directory} holds another labelling: {told}{more}; name another directory with --out, or throw that "
                "one away with --restart",
                field=different[0],
            )
    elif next(directory.glob("rows-*.parquet"), None) is not None:
        raise StartupError(
            f"{directory} has labels and no {STATE_FILE} that says whose they are; name another directory with --out, "
            "or throw them away with --restart",
            field="out",
        )
    else:
        write_part(path, RunState(run=description))


def _flat(part: Part) -> dict[str, Any]:
    """Its values by dotted keys."""
    flat: dict[str, Any] = {}
    pending: list[tuple[str, Any]] = [("", part.model_dump(mode="json"))]
    while pending:
        prefix, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{prefix}.{key}" if prefix else key, inner) for key, inner in value.items()]
        else:
            flat[prefix] = value
    return flat


def missing_shards(directory: Path, description: RunDescription) -> list[int]:
    """Shards that are still to be made.

    Raises:
        CheckpointError: one that is there is damaged, or another run's.
    """
    missing = []
    for index in range(description.num_shards):
        if (directory / shard_name(index)).exists():
            read_own_shard(directory, index, description)
        else:
            missing.append(index)
    return missing


def read_own_shard(directory: Path, index: int, description: RunDescription) -> Shard:
    """A shard of a run.

    Raises:
        CheckpointError: it is damaged, or another run's.
    """
    path = directory / shard_name(index)
    shard = read_shard(path, num_top_logits=description.num_top_logits, hidden_size=description.hidden_size)
    if (shard.counts.run_sha256, shard.counts.index) != (description.sha256, index):
        raise CheckpointError(f"{path} is a file of another labelling; remove it to have it made anew")
    return shard

"""Labelled tokens on disk: `labels.safetensors` and `labels.json`. Nothing is ever unpickled."""

import hashlib
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Generic, Literal, Protocol, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..errors import CheckpointError
from ..router.manifest import MadeFor, MadeForSlm

TENSORS_FILE, DESCRIPTION_FILE = "labels.safetensors", "labels.json"


@dataclass(frozen=True, slots=True)
class TokenRows:
    """One row for each token of each text, problem after problem; subclasses say what is in a row."""

    problem_ids: Tensor
    """int64 [n], ascending from 0."""

    def __len__(self) -> int:
        return len(self.problem_ids)

    @property
    def num_problems(self) -> int:
        """How many problems there are."""
        return int(self.problem_ids[-1]) + 1 if len(self) else 0

    def rows(self, chosen: Tensor) -> Self:
        """The rows of a mask or of indices."""
        return type(self)(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


class RowsDescription(BaseModel):
    """What the rows were made from; subclasses name their format."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    format: str
    version: Literal[1] = 1
    slm: MadeForSlm
    llm: MadeFor
    source: str
    problem_seed: int
    num_asked: Annotated[int, Field(ge=0)]
    """Problems put to the models; perhaps not all of them gave rows."""
    labels_sha256: str


class Kind(IntEnum):
    """What became of the small model's proposal (R2R, arXiv 2505.21600, section 3.1)."""

    IDENTICAL = 0
    NEUTRAL = 1
    DIVERGENT = 2


@dataclass(frozen=True, slots=True)
class LabelSet(TokenRows):
    """The tokens of the large model's answers, as R2R labels them."""

    top_logits: Tensor
    """float32 [n, k], raw, largest first."""
    hidden_states: Tensor
    """float32 [n, hidden], after the final norm."""
    token_ids: Tensor
    """int64 [n], the small model's proposals."""
    kinds: Tensor
    """uint8 [n], as `Kind`."""

    @property
    def divergent(self) -> Tensor:
        """float32 [n], 1 where the proposal diverges: identical and neutral are both 0."""
        return (self.kinds == Kind.DIVERGENT).float()

    def count(self, kind: Kind) -> int:
        """How many tokens are of a kind."""
        return int((self.kinds == kind).sum())


class LabelOrigin(Protocol):
    """What a training needs to know of its labels, whoever made them."""

    @property
    def slm(self) -> MadeForSlm:
        """The small model, whose features they are."""
        ...

    @property
    def llm(self) -> MadeFor:
        """The large model, which wrote the answers."""
        ...

    @property
    def source(self) -> str:
        """Where they came from, in words."""
        ...

    @property
    def problem_seed(self) -> int:
        """Of generated problems."""
        ...

    @property
    def labels_sha256(self) -> str:
        """Hash of the labels."""
        ...


_Rows = TypeVar("_Rows", bound=TokenRows)
_Description = TypeVar("_Description", bound=RowsDescription)


def save_labels(directory: Path, labels: TokenRows, description: _Description) -> _Description:
    """Write labelled tokens; the description gets the hash of the tensors, and is returned."""
    directory.mkdir(parents=True, exist_ok=True)
    content = save({field.name: getattr(labels, field.name).contiguous() for field in fields(labels)})
    description = description.model_copy(update={"labels_sha256": hashlib.sha256(content).hexdigest()})
    (directory / TENSORS_FILE).write_bytes(content)
    (directory / DESCRIPTION_FILE).write_text(description.model_dump_json(indent=2) + "\n")
    return description


def load_labels(directory: Path, kind: type[_Rows], described: type[_Description]) -> tuple[_Rows, _Description]:
    """Read labelled tokens of a kind.

    Raises:
        CheckpointError: a file is missing, damaged or of another kind, or the two do not belong together.
    """
    try:
        content = (directory / TENSORS_FILE).read_bytes()
        description = described.model_validate_json((directory / DESCRIPTION_FILE).read_text())
        tensors = load(content)
        labels = kind(**tensors)
    except (OSError, ValueError, ValidationError, SafetensorError, TypeError) as error:
        raise CheckpointError(f"the labels in {directory} are missing or damaged: {error}") from error
    if hashlib.sha256(content).hexdigest() != description.labels_sha256:
        raise CheckpointError(f"{directory / TENSORS_FILE} is not the file that {DESCRIPTION_FILE} was written for")
    return labels, description


@dataclass(frozen=True, slots=True)
class Splits(Generic[_Rows]):
    """Labelled tokens in three parts that share no problem."""

    train: _Rows
    validation: _Rows
    test: _Rows


def split_by_problem(labels: _Rows, seed: int, held_out_share: float = 0.15) -> Splits[_Rows]:
    """Part labelled tokens by problem: two held-out shares, for validation and for test, and the rest to train on."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(labels.num_problems, generator=generator)
    size = round(held_out_share * labels.num_problems)
    validation, test, train = order[:size], order[size : 2 * size], order[2 * size :]
    return Splits(*(labels.rows(torch.isin(labels.problem_ids, part)) for part in (train, validation, test)))

"""The safetensors files of a model directory, read by header: which tensors there are, and single ones of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import CheckpointError

OUTPUT_LAYER = "lm_head.weight"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies and its shape; its values are not read."""

    path: Path
    shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model, over all shards.

    Raises:
        CheckpointError: there are no safetensors files, or one is damaged.
    """
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"no *.safetensors in {directory}: the path must be a model in the Hugging Face layout")
    found: dict[str, StoredTensor] = {}
    for path in paths:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                found[name] = StoredTensor(path, tuple(file.get_slice(name).get_shape()))
    return found


def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor, on the CPU, in the dtype of the file.

    Raises:
        CheckpointError: the file is damaged, or does not hold it.
    """
    with _opened(path) as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


def input_embedding(tensors: dict[str, StoredTensor], directory: Path) -> str:
    """Name of the input embedding. A tied pair may be stored under the output layer's name alone.

    Raises:
        CheckpointError: there is none, or more than one.
    """
    found = [name for name in tensors if name.endswith(_EMBEDDINGS)] or [n for n in tensors if n == OUTPUT_LAYER]
    if len(found) != 1:
        raise CheckpointError(f"the model in {directory} has {len(found)} input embeddings instead of one")
    return found[0]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error}") from error

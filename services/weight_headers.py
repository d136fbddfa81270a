"""Which tensors a model's safetensors files hold, told by their headers: without torch, and without a weight."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

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
        try:
            with safe_open(path, framework="np") as file:
                names = list(file.keys())
                found |= {name: StoredTensor(path, tuple(file.get_slice(name).get_shape())) for name in names}
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} is missing or damaged: {error}") from error
    return found


def input_embedding(tensors: dict[str, StoredTensor], directory: Path) -> str:
    """Name of the input embedding. A tied pair may be stored under the output layer's name alone.

    Raises:
        CheckpointError: there is none, or more than one.
    """
    found = [name for name in tensors if name.endswith(_EMBEDDINGS)] or [n for n in tensors if n == OUTPUT_LAYER]
    if len(found) != 1:
        raise CheckpointError(f"the model in {directory} has {len(found)} input embeddings instead of one")
    return found[0]


def count_parameters(directory: Path, *, is_tied: bool) -> int:
    """Parameters of a model. `is_tied`: the output layer is the input embedding, and counts once.

    Raises:
        CheckpointError: files are missing or damaged, or hold no input embedding.
    """
    tensors = stored_tensors(directory)
    if is_tied and input_embedding(tensors, directory) != OUTPUT_LAYER:
        tensors.pop(OUTPUT_LAYER, None)
    return sum(tensor.num_values for tensor in tensors.values())

"""What a scorer needs of the small model's files: its input embedding, and how wide its hidden states are."""

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CheckpointError
from ..vocabulary import read_json
from ..weight_headers import input_embedding, stored_tensors


def load_embedding(directory: Path) -> Tensor:
    """The input embedding [rows, embedding size] in the dtype of the file.

    Raises:
        CheckpointError: the model's files are missing or damaged, or hold no input embedding.
    """
    tensors = stored_tensors(directory)
    name = input_embedding(tensors, directory)
    path = tensors[name].path
    try:
        with safe_open(path, framework="pt") as file:
            embedding: Tensor = file.get_tensor(name)
            return embedding
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error}") from error


def embedding_hash(embedding: Tensor) -> str:
    """SHA-256 of an embedding's bytes (hex)."""
    return hashlib.sha256(embedding.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def hidden_size_of(directory: Path) -> int:
    """Width of the model's hidden states.

    Raises:
        CheckpointError: its config.json is missing or damaged, or does not tell.
    """
    config = read_json(directory / "config.json")
    size = config.get("text_config", config).get("hidden_size")
    if not isinstance(size, int):
        raise CheckpointError(f"the config.json in {directory} has no hidden_size")
    return size

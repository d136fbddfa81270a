"""The small model's input embedding, the one tensor of it that a router needs."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from ..weight_files import input_embedding, read_tensor, stored_tensors


def load_embedding(directory: Path) -> Tensor:
    """The input embedding [rows, embedding size] in the dtype of the file.

    Raises:
        CheckpointError: the model's files are missing or damaged, or hold no input embedding.
    """
    tensors = stored_tensors(directory)
    name = input_embedding(tensors, directory)
    return read_tensor(tensors[name].path, name)


def embedding_hash(embedding: Tensor) -> str:
    """SHA-256 of an embedding's bytes (hex)."""
    return hashlib.sha256(embedding.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()

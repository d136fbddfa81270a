"""Models of which only the sizes are on disk: a safetensors file's header, and a hole where its tensors would be."""

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from .shapes import Shape

_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def write_hole(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str) -> None:
    """A safetensors file that has these tensors, of a dtype by its name there; they read as zeros, and take no disk."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    content = json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content)
    os.truncate(path, 8 + len(content) + end)


def write_sizes(directory: Path, shape: Shape) -> None:
    """What settings are resolved by: a config.json, the embedding, the output layer, and one tensor for all else."""
    directory.mkdir(parents=True)
    table = (shape.vocab_size, shape.hidden_size)
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table}
    if not shape.is_tied:
        tensors["lm_head.weight"] = table
    tensors["model.rest"] = (shape.num_parameters - len(tensors) * shape.embedding,)
    (directory / "config.json").write_text(json.dumps({"model_type": shape.model_type, **shape.config()}))
    write_hole(directory / "model.safetensors", tensors, "BF16")

"""The files of a checkpoint of ours, a directory with weights and a manifest, and what all kinds check of them."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from ..errors import CheckpointError
from ..model_identity import identify_model
from .embedding import embedding_hash, load_embedding
from .manifest import MadeForSlm, ScorerManifest, parse_manifest

MANIFEST_FILE = "manifest.json"

_Manifest = TypeVar("_Manifest", bound=ScorerManifest)
_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class CheckpointFiles(Generic[_Manifest]):
    """What was read from a directory; the weights are not parsed yet."""

    manifest: _Manifest
    weights: bytes
    path: Path
    """Of the weights."""

    def fill(self, build: Callable[[], _Module]) -> _Module:
        """A module in eval mode that holds the weights.

        Raises:
            CheckpointError: they are damaged, do not fit the module, or are not those of the manifest.
        """
        try:
            state = load(self.weights)
        except SafetensorError as error:
            raise CheckpointError(f"{self.path} is damaged or no safetensors file: {error}") from error
        module = fill_module(build, state, self.path)
        if hashlib.sha256(self.weights).hexdigest() != self.manifest.weights_sha256:
            raise CheckpointError(f"{self.path} is not the file that {MANIFEST_FILE} was written for")
        return module


def read_files(directory: Path, weights_file: str, kind: type[_Manifest], wanted: str) -> CheckpointFiles[_Manifest]:
    """Read a checkpoint; `wanted` says in messages what the directory should be.

    Raises:
        CheckpointError: a file is missing, or the manifest is damaged or of another kind.
    """
    where = directory / MANIFEST_FILE
    manifest = parse_manifest(_read(where, wanted).decode(errors="replace"), str(where), kind)
    path = directory / weights_file
    return CheckpointFiles(manifest, _read(path, wanted), path)


def write_files(directory: Path, weights_file: str, module: nn.Module, manifest: ScorerManifest) -> None:
    """Write a checkpoint; the manifest gets the hash of the weights. Each file appears whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = save({name: tensor.contiguous() for name, tensor in module.state_dict().items()})
    manifest = manifest.model_copy(update={"weights_sha256": hashlib.sha256(weights).hexdigest()})
    write_file(directory / weights_file, weights)
    write_file(directory / MANIFEST_FILE, (manifest.model_dump_json(indent=2) + "\n").encode())


def fitting_embedding(made_for: MadeForSlm, slm_directory: Path) -> Tensor:
    """The small model's input embedding, in the dtype of its file.

    Raises:
        CheckpointError: it is another small model than the one that a checkpoint was made for.
    """
    difference = made_for.first_difference(identify_model(slm_directory))
    if difference is None:
        embedding = load_embedding(slm_directory)
        if embedding_hash(embedding) == made_for.embedding_sha256:
            return embedding
        difference = "it has the same shape but other weights"
    raise CheckpointError(
        f"the router was made for another small model than the one in {slm_directory}: {difference}; "
        "train a router for this one, or serve the one that it was made for"
    )


def fill_module(build: Callable[[], _Module], state: Mapping[str, Tensor], path: Path) -> _Module:
    """A module in eval mode that holds the tensors of `state` themselves; `path` names their file in messages.

    Raises:
        CheckpointError: a tensor is missing, one too many, or not float32 of its shape; the message names it.
    """
    with torch.device("meta"):
        module = build()
    _check_tensors(state, module.state_dict(), path)
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)


def _check_tensors(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: Path) -> None:
    for name in sorted(wanted.keys() | state.keys()):
        if name not in state:
            raise CheckpointError(f"{path}: the tensor {name} is missing", field=name)
        if name not in wanted:
            raise CheckpointError(f"{path}: the tensor {name} is not part of this router", field=name)
        if state[name].shape != wanted[name].shape or state[name].dtype != torch.float32:
            found, right = list(state[name].shape), list(wanted[name].shape)
            raise CheckpointError(
                f"{path}: the tensor {name} is {state[name].dtype} {found}, not torch.float32 {right}", field=name
            )


def _read(path: Path, wanted: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}; {wanted}") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(content)
    partial.replace(path)

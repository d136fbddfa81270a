"""Loads routers of either format, and writes ours: a directory with `router.safetensors` and `manifest.json`."""

import hashlib
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..errors import CheckpointError
from ..model_identity import identify_model
from .classifier import HiddenStatesTokenLMHeadLogitsClassifier
from .embedding import embedding_hash, load_embedding
from .loaded_router import LoadedRouter, fill_classifier
from .manifest import RouterManifest, parse_manifest
from .official_checkpoint import SUFFIX, load_official

WEIGHTS_FILE, MANIFEST_FILE = "router.safetensors", "manifest.json"


def load_router(path: Path, slm_directory: Path) -> LoadedRouter:
    """Load a router for a small model: our directory, or the `.pt` file of a published one.

    Raises:
        CheckpointError: a file is missing or damaged, or the router was made for another model; the message
            names the tensor or the key.
    """
    if path.suffix == SUFFIX and not path.is_dir():
        return load_official(path, slm_directory)
    return _load_ours(path, slm_directory)


def save_router(directory: Path, classifier: HiddenStatesTokenLMHeadLogitsClassifier, manifest: RouterManifest) -> None:
    """Write a checkpoint; the manifest gets the hash of the weights. Each file appears whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = save({name: tensor.contiguous() for name, tensor in classifier.state_dict().items()})
    manifest = manifest.model_copy(update={"weights_sha256": hashlib.sha256(weights).hexdigest()})
    _write(directory / WEIGHTS_FILE, weights)
    _write(directory / MANIFEST_FILE, (manifest.model_dump_json(indent=2) + "\n").encode())


def _load_ours(directory: Path, slm_directory: Path) -> LoadedRouter:
    manifest = parse_manifest(_read(directory, MANIFEST_FILE).decode(errors="replace"), f"{directory / MANIFEST_FILE}")
    weights = _read(directory, WEIGHTS_FILE)
    embedding = _fitting_embedding(manifest, slm_directory)
    state = _parse_weights(weights, directory / WEIGHTS_FILE)
    classifier = fill_classifier(manifest.init_args, embedding.shape[1], state, directory / WEIGHTS_FILE)
    if hashlib.sha256(weights).hexdigest() != manifest.weights_sha256:
        raise CheckpointError(f"{directory / WEIGHTS_FILE} is not the file that {MANIFEST_FILE} was written for")
    return LoadedRouter(classifier, embedding.float(), manifest)


def _fitting_embedding(manifest: RouterManifest, slm_directory: Path) -> Tensor:
    difference = manifest.slm.first_difference(identify_model(slm_directory))
    if difference is None:
        embedding = load_embedding(slm_directory)
        if embedding_hash(embedding) == manifest.slm.embedding_sha256:
            return embedding
        difference = "it has the same shape but other weights"
    raise CheckpointError(
        f"the router was made for another small model than the one in {slm_directory}: {difference}; "
        "train a router for this one, or serve the one that it was made for"
    )


def _read(directory: Path, name: str) -> bytes:
    try:
        return (directory / name).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"cannot read {directory / name}: {error.strerror}; router.path must be a directory with "
            f"{WEIGHTS_FILE} and {MANIFEST_FILE}, as `python -m allroads.training.train_router` writes it, or a "
            f"published router's {SUFFIX} file"
        ) from error


def _parse_weights(weights: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return load(weights)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file: {error}") from error


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(content)
    partial.replace(path)

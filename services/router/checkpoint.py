"""Loads routers of either format, and writes ours: a directory with `router.safetensors` and `manifest.json`."""

from pathlib import Path

from .checkpoint_files import MANIFEST_FILE, fitting_embedding, read_files, write_files
from .classifier import HiddenStatesTokenLMHeadLogitsClassifier
from .loaded_router import LoadedRouter
from .official_checkpoint import SUFFIX, load_official
from .router_manifest import RouterManifest

WEIGHTS_FILE = "router.safetensors"
_WANTED = (
    f"router.path must be a directory with {WEIGHTS_FILE} and {MANIFEST_FILE}, as `allroads train` writes it, or a "
    f"published router's {SUFFIX} file"
)


def load_router(path: Path, slm_directory: Path) -> LoadedRouter:
    """Load a router for a small model: our directory, or the `.pt` file of a published one.

    Raises:
        CheckpointError: a file is missing or damaged, or the router was made for another model; the message
            names the tensor or the key.
    """
    if path.suffix == SUFFIX and not path.is_dir():
        return load_official(path, slm_directory)
    files = read_files(path, WEIGHTS_FILE, RouterManifest, _WANTED)
    embedding = fitting_embedding(files.manifest.slm, slm_directory)
    classifier = files.fill(
        lambda: HiddenStatesTokenLMHeadLogitsClassifier(files.manifest.init_args, embedding.shape[1])
    )
    return LoadedRouter(classifier, embedding.float(), files.manifest)


def save_router(directory: Path, classifier: HiddenStatesTokenLMHeadLogitsClassifier, manifest: RouterManifest) -> None:
    """Write a checkpoint; the manifest gets the hash of the weights. Each file appears whole or not at all."""
    write_files(directory, WEIGHTS_FILE, classifier, manifest)

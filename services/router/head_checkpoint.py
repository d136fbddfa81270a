"""Loads and writes the scorers over hidden states: a directory with `scorer.safetensors` and `manifest.json`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..errors import CheckpointError
from ..vocabulary import read_json
from .checkpoint_files import MANIFEST_FILE, fitting_embedding, read_files, write_files
from .embedding import hidden_size_of
from .head_manifest import CiterManifest, CoLlmManifest, HeadManifest
from .heads import CiterNetwork, CoLlmHead

WEIGHTS_FILE = "scorer.safetensors"


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A network in eval mode, float32 [n, hidden size] -> one logit a row, and its manifest."""

    network: nn.Module
    manifest: HeadManifest


@dataclass(frozen=True, slots=True)
class _Kind:
    manifest: type[HeadManifest]
    network: Callable[[int], nn.Module]
    """By hidden size."""
    trainer: str


_KINDS: Mapping[str, _Kind] = {
    "citer": _Kind(CiterManifest, CiterNetwork, "train_citer"),
    "co-llm": _Kind(CoLlmManifest, CoLlmHead, "train_co_llm"),
}


def load_head(name: str, directory: Path, slm_directory: Path) -> LoadedHead:
    """Load the scorer of a name, which says of what kind it is, for a small model.

    Raises:
        CheckpointError: there is no such kind; or a file is missing or damaged, or the scorer is of another kind, or
            made for another small model. The message names the tensor or the key.
    """
    kind = _KINDS.get(name)
    if kind is None:
        raise CheckpointError(f"scorers of that name are not known; there are {', '.join(_KINDS)}")
    wanted = (
        f"it must be in a directory with {WEIGHTS_FILE} and {MANIFEST_FILE}, as `python -m "
        f"allroads.training.{kind.trainer}` writes it"
    )
    files = read_files(directory, WEIGHTS_FILE, kind.manifest, wanted)
    fitting_embedding(files.manifest.slm, slm_directory)
    hidden_size = files.manifest.hidden_states_size
    if hidden_size != (right := hidden_size_of(slm_directory)):
        raise CheckpointError(
            f"{directory / MANIFEST_FILE}: hidden_states_size is {hidden_size}, but the small model in "
            f"{slm_directory} has {right}",
            field="hidden_states_size",
        )
    return LoadedHead(files.fill(lambda: kind.network(hidden_size)), files.manifest)


def holds_head(directory: Path) -> bool:
    """Whether a directory holds a scorer over hidden states, going by the names of its files."""
    return (directory / WEIGHTS_FILE).is_file()


def name_of_head(directory: Path) -> str:
    """By its manifest; `load_head` checks the rest.

    Raises:
        CheckpointError: the manifest is missing or damaged.
    """
    return str(read_json(directory / MANIFEST_FILE).get("name"))


def save_head(directory: Path, network: nn.Module, manifest: HeadManifest) -> None:
    """Write a checkpoint; the manifest gets the hash of the weights. Each file appears whole or not at all."""
    write_files(directory, WEIGHTS_FILE, network, manifest)

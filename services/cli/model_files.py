"""Are a model's or a scorer's files there and whole? Read in milliseconds, without loading a weight."""

from pathlib import Path
from zipfile import BadZipFile, ZipFile

from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError
from ..vocabulary import Vocabulary, load_vocabulary, read_json

WEIGHTS = "model.safetensors"
_SHARD_INDEX = "model.safetensors.index.json"
_ROUTER_WEIGHTS, _SCORER_WEIGHTS, _MANIFEST = "router.safetensors", "scorer.safetensors", "manifest.json"
_PUBLISHED_ROUTER = ".pt"


def check_model(directory: Path, key: str) -> Vocabulary:
    """Check a model in the Hugging Face layout; `key` names its setting in messages.

    Raises:
        CheckpointError: a file is missing or damaged, or the output layer has fewer rows than tokens.
    """
    _require_directory(directory, key, "a model in the Hugging Face layout")
    config = read_json(_require(directory / "config.json", key))
    for weights in _weight_files(directory, key):
        _check_safetensors(weights, key)
    vocabulary = load_vocabulary(directory)
    rows = config.get("vocab_size")
    if isinstance(rows, int) and rows < len(vocabulary):
        raise CheckpointError(
            f"{key}: the tokenizer in {directory} has {len(vocabulary)} ids, the model's output layer "
            f"only {rows} rows; take both from one model",
            field=key,
        )
    return vocabulary


def check_router(path: Path, key: str) -> None:
    """Check that a router's checkpoint is there; what it was made for is the router service's to judge.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    if path.suffix == _PUBLISHED_ROUTER and not path.is_dir():
        _check_torch_archive(path, key)
        return
    content = f"{_ROUTER_WEIGHTS} and {_MANIFEST}, or to a published router's {_PUBLISHED_ROUTER} file"
    _check_checkpoint(path, key, _ROUTER_WEIGHTS, content)


def check_scorer(directory: Path, key: str) -> None:
    """Check that the checkpoint of a scorer beside the router is there.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    _check_checkpoint(directory, key, _SCORER_WEIGHTS, f"{_SCORER_WEIGHTS} and {_MANIFEST}")


def _check_checkpoint(directory: Path, key: str, weights: str, content: str) -> None:
    _require_directory(directory, key, content)
    read_json(_require(directory / _MANIFEST, key))
    _check_safetensors(_require(directory / weights, key), key)


def _weight_files(directory: Path, key: str) -> list[Path]:
    index = directory / _SHARD_INDEX
    if not index.is_file():
        return [_require(directory / WEIGHTS, key)]
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{key}: {index} is damaged: it names no weights; fetch it again", field=key)
    return [_require(directory / str(name), key) for name in sorted(set(shards.values()))]


def _require_directory(directory: Path, key: str, content: str) -> None:
    if not directory.is_dir():
        raise CheckpointError(f"{key}: no directory {directory}; set it to a directory with {content}", field=key)


def _require(path: Path, key: str) -> Path:
    if not path.is_file():
        raise CheckpointError(f"{key}: {path} is missing; complete the directory, or set {key} to another", field=key)
    return path


def _check_safetensors(path: Path, key: str) -> None:
    """The header is read and compared with the size of the file: a download that broke off is found."""
    try:
        with safe_open(path, framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{key}: {path} is damaged ({error}); fetch it again", field=key) from error


def _check_torch_archive(path: Path, key: str) -> None:
    """The list of what is in it lies at its end: a download that broke off is found. Nothing is unpickled."""
    if not path.is_file():
        raise CheckpointError(f"{key}: no file {path}; fetch that router, or set {key} to another", field=key)
    try:
        with ZipFile(path) as archive:
            names = archive.namelist()
    except (BadZipFile, OSError) as error:
        raise CheckpointError(
            f"{key}: {path} is damaged or was not written by torch.save ({error}); fetch it again", field=key
        ) from error
    if not any(name.endswith("/data.pkl") for name in names):
        raise CheckpointError(
            f"{key}: {path} is an archive without a checkpoint (no data.pkl); set {key} to the published router's file",
            field=key,
        )

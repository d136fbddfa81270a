"""Which model a directory holds, told by its contents: the same under another path, another under the same path."""

from dataclasses import dataclass
from pathlib import Path

from .errors import CheckpointError
from .vocabulary import load_vocabulary, read_json
from .weight_headers import count_parameters


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What a router, a calibration or a peer was made for."""

    model_id: str
    """Family, layers x width, and parameters: `qwen3-2x64-131k`."""
    num_parameters: int
    """A tied output layer counts once."""
    tokenizer_hash: str


def identify_model(directory: Path) -> ModelIdentity:
    """Read the identity of a model in the Hugging Face layout; weights are not loaded.

    Raises:
        CheckpointError: files are missing or damaged.
    """
    config = read_json(directory / "config.json")
    config = config.get("text_config", config)
    try:
        family, layers, width = config["model_type"], config["num_hidden_layers"], config["hidden_size"]
    except KeyError as error:
        raise CheckpointError(f"the config.json in {directory} has no {error}") from error
    num_parameters = count_parameters(directory, is_tied=bool(config.get("tie_word_embeddings")))
    return ModelIdentity(
        model_id=f"{family}-{layers}x{width}-{_rounded(num_parameters)}",
        num_parameters=num_parameters,
        tokenizer_hash=load_vocabulary(directory).hash,
    )


def _rounded(count: int) -> str:
    for size, unit in ((10**9, "b"), (10**6, "m"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)

"""How much memory a model takes, told by its config.json and weight headers: without torch or a weight."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import Dtype
from .errors import CheckpointError
from .vocabulary import read_json
from .weight_headers import count_parameters

DTYPE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class TokenKv:
    """What is kept of each token: a key and a value per layer and KV head, `head_dim` numbers each."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def num_bytes(self, dtype: Dtype) -> int:
        """Bytes of KV per token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * DTYPE_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Memory of a model, as it is loaded."""

    weight_bytes: int
    kv_bytes_per_token: int


def token_kv(config: Mapping[str, Any], directory: Path) -> TokenKv:
    """The shape of a token's KV, by a model's text configuration; `directory` names the model in messages.

    Raises:
        CheckpointError: a key is missing or no number above zero.
    """
    try:
        num_heads = config["num_attention_heads"]
        shape = TokenKv(
            num_layers=config["num_hidden_layers"],
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // num_heads,
        )
        if min(shape.num_layers, shape.num_kv_heads, shape.head_dim) > 0:
            return shape
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise CheckpointError(f"the config.json in {directory} does not tell the size of the KV: {error!r}") from error
    raise CheckpointError(f"the config.json in {directory} tells of a KV without any size: {shape}")


def model_size(directory: Path, dtype: Dtype) -> ModelSize:
    """Size of a model in the Hugging Face layout whose weights and KV are kept in `dtype`.

    Raises:
        CheckpointError: files are missing or damaged.
    """
    config = read_json(directory / "config.json")
    config = config.get("text_config", config)
    num_parameters = count_parameters(directory, is_tied=bool(config.get("tie_word_embeddings")))
    return ModelSize(num_parameters * DTYPE_BYTES[dtype], token_kv(config, directory).num_bytes(dtype))

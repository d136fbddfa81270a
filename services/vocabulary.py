"""What makes two tokenizers the same: every token's id, the special tokens, and where text ends.

Read from a model's files, before any weights, so that a pair that does not fit is refused early. A
padded output layer is no part of it: pairs with one tokenizer and different paddings fit.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from .errors import CheckpointError

_SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, special tokens by role, and the ids that end a text."""

    tokens: tuple[str, ...]
    """Token of id i; empty where an id has none."""
    special_tokens: dict[str, str]
    """Such as {"eos_token": "<|im_end|>"}; roles that are not set are left out."""
    eos_token_ids: tuple[int, ...]
    """Union of what tokenizer, model config and generation config name, ascending."""

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def hash(self) -> str:
        """Equal for tokenizers that give every text the same ids and end it alike (SHA-256, hex)."""
        content = json.dumps([self.tokens, sorted(self.special_tokens.items())], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def first_difference(self, other: "Vocabulary") -> str | None:
        """The first thing in which another vocabulary differs, for an error message; None where nothing does."""
        for token_id in range(max(len(self), len(other))):
            mine, its = self._token(token_id), other._token(token_id)
            if mine != its:
                return f"id {token_id} is {mine!r} in one and {its!r} in the other"
        for role in sorted(self.special_tokens.keys() | other.special_tokens.keys()):
            mine, its = self.special_tokens.get(role, ""), other.special_tokens.get(role, "")
            if mine != its:
                return f"the {role} is {mine!r} in one and {its!r} in the other"
        return None

    def _token(self, token_id: int) -> str:
        return self.tokens[token_id] if token_id < len(self.tokens) else ""


def load_vocabulary(directory: Path) -> Vocabulary:
    """Read the vocabulary of a model in the Hugging Face layout.

    Raises:
        CheckpointError: the directory or its tokenizer is missing or damaged.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"no tokenizer.json in {directory}: the path must be a model in the Hugging Face layout")
    try:
        ids: dict[str, int] = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises bare Exception for a damaged file
        raise CheckpointError(f"{path} is damaged: {error}") from error
    tokens = [""] * (max(ids.values()) + 1)
    for token, token_id in ids.items():
        tokens[token_id] = token
    special = _special_tokens(directory)
    ends = _end_token_ids(directory / "config.json") | _end_token_ids(directory / "generation_config.json")
    if special.get("eos_token") in ids:
        ends.add(ids[special["eos_token"]])
    return Vocabulary(tuple(tokens), special, tuple(sorted(ends)))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, empty where there is no file.

    Raises:
        CheckpointError: the file cannot be read, or holds no JSON object.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: it holds no JSON object")
    return content


def _special_tokens(directory: Path) -> dict[str, str]:
    content = read_json(directory / "special_tokens_map.json") | read_json(directory / "tokenizer_config.json")
    named = {role: content.get(role) for role in _SPECIAL_ROLES}
    plain = {role: value.get("content") if isinstance(value, dict) else value for role, value in named.items()}
    return {role: value for role, value in plain.items() if isinstance(value, str)}


def _end_token_ids(path: Path) -> set[int]:
    """What a file lists as `eos_token_id`: an id, several, or none."""
    value = read_json(path).get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
        raise CheckpointError(f"{path} is damaged: eos_token_id must be a token id or a list of them, not {value!r}")
    return set(ids)

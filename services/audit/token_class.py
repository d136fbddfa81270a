"""What kind of token it is, by the tokenizer's text of it alone."""

import unicodedata
from enum import StrEnum
from pathlib import Path

from tokenizers import Tokenizer

from ..errors import StartupError
from ..gateway.text.tokenizer import TextTokenizer, load_tokenizer


class TokenClass(StrEnum):
    """Classes in the order in which they are shown."""

    WORD_START = "word start"
    """Begins with white space and has a letter."""
    WORD_PIECE = "word piece"
    """Has a letter, or is a part of a character, and does not."""
    DIGIT = "digit"
    PUNCTUATION = "punctuation"
    WHITESPACE = "whitespace"
    SPECIAL = "special"
    """Such as the end of an answer; never shown to clients."""


class TokenClasses:
    """Classes and texts of a model's tokens."""

    def __init__(self, directory: Path) -> None:
        """Read the tokenizer of a model in the Hugging Face layout.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        self.tokenizer: TextTokenizer = load_tokenizer(directory)
        added = Tokenizer.from_file(str(directory / "tokenizer.json")).get_added_tokens_decoder()
        flagged = {token_id for token_id, token in added.items() if token.special}
        self._special = flagged | set(self.tokenizer.vocabulary.eos_token_ids)
        self._known: dict[int, TokenClass] = {}
        self._directory = directory

    def __getitem__(self, token_id: int) -> TokenClass:
        if (found := self._known.get(token_id)) is None:
            self.require(token_id)
            found = self._known[token_id] = (
                TokenClass.SPECIAL if token_id in self._special else class_of(self.tokenizer.token_texts[token_id].text)
            )
        return found

    def text(self, token_id: int) -> str:
        """A token between quotes, its line breaks and control characters spelled out."""
        self.require(token_id)
        return repr(self.tokenizer.token_texts[token_id].text)

    def require(self, token_id: int) -> None:
        """Refuse ids that the tokenizer does not have.

        Raises:
            StartupError: it is another model's.
        """
        if token_id >= len(self.tokenizer.vocabulary):
            raise StartupError(
                f"--tokenizer: the log has token {token_id}, but the tokenizer in {self._directory} has only "
                f"{len(self.tokenizer.vocabulary)}; give the directory of the model that was served",
                field="tokenizer",
            )


def class_of(text: str) -> TokenClass:
    """Class of a token that is not special."""
    if not text.strip():
        return TokenClass.WHITESPACE
    # Marks belong to letters: much of the world writes vowels with them.
    if any(unicodedata.category(character)[0] in "LM" for character in text):
        return TokenClass.WORD_START if text[0].isspace() else TokenClass.WORD_PIECE
    return TokenClass.DIGIT if any(character.isdigit() for character in text) else TokenClass.PUNCTUATION

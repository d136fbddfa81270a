"""How long a prompt may be: its tokens, where the operator allows less than the context, and its text before that."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ContextLengthExceeded


@dataclass(frozen=True, slots=True)
class TextLimit:
    """How many tokens of a text can be of use, so that no time goes into tokenizing what cannot fit."""

    max_tokens: int
    longest_token: int
    """The most characters that a token of the vocabulary stands for."""
    keeps_end: bool = False
    """Whether the end of a longer text is of use; else it is refused."""

    def fit(self, text: str, field: str) -> str:
        """A text, or its end, that may become tokens.

        What is refused has more tokens than may be, but for characters that a tokenizer drops or joins at first.

        Raises:
            ContextLengthExceeded: it is too long.
        """
        most = self.max_tokens * self.longest_token
        if len(text) <= most:
            return text
        if self.keeps_end:
            return text[-most:]
        raise ContextLengthExceeded(
            f"{field} has {len(text)} characters, which is more than the {self.max_tokens} tokens it may have",
            field=field,
        )


def check_prompt_size(token_ids: Sequence[int], limit: int | None, field: str) -> None:
    """Hold a prompt to a limit of tokens, if there is one.

    Raises:
        ContextLengthExceeded: it is longer.
    """
    if limit is not None and len(token_ids) > limit:
        raise ContextLengthExceeded(f"{field} has {len(token_ids)} tokens, and may have {limit} here", field=field)

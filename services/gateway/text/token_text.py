"""What a single token says: its bytes, and a text that can be read even where they are no characters.

A token's bytes are those that it adds to a text, so those of all tokens, joined, are the text's. It takes
a look at how the tokenizer decodes: by GPT-2's alphabet for bytes, by names such as `<0xE4>`, or as text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_BEFORE = "a"
"""Some decoders treat the first token of a text apart, so no token is looked at as the first."""
_NAMED_BYTE = re.compile("<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as clients see it."""

    text: str
    """Its characters; `bytes:` and a spelling such as `\\xe4` where its bytes are none."""
    data: bytes


class TokenTexts:
    """The texts of a vocabulary's tokens by id, each worked out when it is first asked for.

    `decode` turns a list of tokens into text, as the tokenizer's decoder does.
    """

    def __init__(self, tokens: Sequence[str], decode: Callable[[list[str]], str]) -> None:
        self._tokens = tokens
        self._decode = decode
        self._bytes_of_letters = _gpt2_alphabet() if decode([_BEFORE, "Ġ"]) == f"{_BEFORE} " else {}
        self._has_named_bytes = decode([_BEFORE, "<0x41>"]) == f"{_BEFORE}A"
        self._known: dict[int, TokenText] = {}

    def __getitem__(self, token_id: int) -> TokenText:
        if (found := self._known.get(token_id)) is None:
            data = self._bytes(self._tokens[token_id])
            found = self._known[token_id] = TokenText(_readable(data), data)
        return found

    def _bytes(self, token: str) -> bytes:
        if self._bytes_of_letters:
            letters = [self._bytes_of_letters.get(letter) for letter in token]
            known = bytes(letter for letter in letters if letter is not None)
            # A token with another letter was added to the vocabulary as plain text.
            return known if len(known) == len(letters) else token.encode()
        if self._has_named_bytes and (named := _NAMED_BYTE.fullmatch(token)):
            return bytes.fromhex(named[1])
        return self._decode([_BEFORE, token]).removeprefix(_BEFORE).encode()


def _readable(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        # As OpenAI's API shows it, so that two such tokens can be told apart.
        return "bytes:" + data.decode(errors="backslashreplace")


def _gpt2_alphabet() -> dict[str, int]:
    """The byte that each letter stands for in a byte-level vocabulary (`bytes_to_unicode` in GPT-2's encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}

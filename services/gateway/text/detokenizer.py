"""Token ids to text while they come, in pieces that never take anything back.

The joined pieces equal one decode of all ids. A character whose bytes lie in several tokens is held until
it is whole. Only a short window of ids is decoded each time, so a token costs the same at any length; the
window keeps whole tokens before the new ones because some decoders treat the first token of a text apart.
"""

from collections.abc import Callable, Iterable, Sequence

_HALF = "\N{REPLACEMENT CHARACTER}"
"""What decoders show for bytes that are no character, or not yet."""
_LONG_WINDOW = 16
"""Ids from which on a window is cut."""
_LONG_NOISE = 64
"""Ids without a clean end from which on they are taken for noise; no character has so many tokens."""
_MAX_CHARACTER_TOKENS = 4


class Detokenizer:
    """The text of one sequence. `decode` turns ids into text and leaves special tokens out."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_shown = 0
        """Characters of the window's text that were given out."""
        self._num_clean = 0
        """Ids up to the last place where the window's text ended with a whole character."""

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that became certain with these ids, often empty."""
        self._window.extend(token_ids)
        text = self._decode(self._window)
        certain = text.rstrip(_HALF)
        piece = certain[self._num_shown :]
        self._num_shown = max(self._num_shown, len(certain))
        if len(certain) == len(text):
            self._cut_window()
        elif len(self._window) > _LONG_NOISE:
            piece += self._cut_noise(text)
        return piece

    def finish(self) -> str:
        """What is left when no id will follow; half a character shows as U+FFFD, as in any decode."""
        text = self._decode(self._window)
        piece = text[self._num_shown :]
        self._num_shown = max(self._num_shown, len(text))
        return piece

    def _cut_window(self) -> None:
        """The text ends with a whole character: forget what lies before the last such place."""
        if len(self._window) > _LONG_WINDOW:
            recent = self._window[self._num_clean :]
            # An empty text would leave the next token as the first of a text.
            if recent_text := self._decode(recent):
                self._window, self._num_shown = recent, len(recent_text)
        self._num_clean = len(self._window)

    def _cut_noise(self, text: str) -> str:
        """Give out a long run of bytes that are no characters, up to a token that parts it cleanly."""
        for cut in range(len(self._window) - 1, len(self._window) - 1 - _MAX_CHARACTER_TOKENS, -1):
            before = self._decode(self._window[:cut])
            if before + self._decode(self._window[cut:]) == text:
                piece = before[self._num_shown :]
                self._window, self._num_shown, self._num_clean = self._window[cut:], 0, 0
                return piece
        return ""

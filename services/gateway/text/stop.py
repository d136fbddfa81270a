"""Stop strings in a text that comes in pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string is complete, and never shows a part of one.

    The match that ends first wins; of those that end together, the longest. So the result does not depend
    on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, shows_stop: bool = False) -> None:
        """`shows_stop`: whether the stop string that is found is text, too."""
        self._stops = tuple(stops)
        self._shows_stop = shows_stop
        self._held = ""
        self.matched = False
        """Whether a stop string was found: no text follows."""

    def push(self, piece: str) -> str:
        """Text that can no longer become part of a stop string."""
        if not self._stops or not piece:
            return piece
        text = self._held + piece
        if (found := self._find(text)) is not None:
            self.matched, self._held = True, ""
            return text[: found[0] if self._shows_stop else found[1]]
        num_held = max(_overlap(text, stop) for stop in self._stops)
        shown = len(text) - num_held
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """What was held when no text will follow: it is no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, int] | None:
        """Where the stop string that is complete first ends and begins."""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found) if found else None


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text with which the stop string begins."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0

"""The text of an answer while its tokens come: detokenised, cut at a stop string, and measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .detokenizer import Detokenizer
from .stop import StopMatcher


@dataclass(frozen=True, slots=True)
class Shown:
    """What some tokens gave."""

    text: str
    """Text that became certain."""
    num_tokens: int
    """How many of the tokens belong to the answer: those behind a stop string do not."""
    offsets: list[int]
    """Of each of these, the characters that were certain before it. Empty where nobody asks for them."""


class AnswerText:
    """The text of one sequence. `decode` turns ids into text and leaves special tokens out."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str],
        *,
        has_offsets: bool = False,
        shows_stop: bool = False,
        begins_at: int = 0,
    ) -> None:
        """`shows_stop`: what ends the answer is text, too. `begins_at`: characters before it, for offsets."""
        self._detokenizer = Detokenizer(decode)
        self._matcher = StopMatcher(stops, shows_stop=shows_stop)
        self._shows_stop = shows_stop
        self._goes_one_by_one = has_offsets or bool(stops)
        self._has_offsets = has_offsets
        self._num_characters = begins_at
        """Characters that are certain, those held or cut for a stop string included."""

    @property
    def is_cut(self) -> bool:
        """Whether a stop string was found: no text follows."""
        return self._matcher.matched

    def push(self, token_ids: Sequence[int], *, last_is_hidden: bool) -> Shown:
        """Take the next tokens, of which the last may be a stop token: it counts and is not shown."""
        last_is_hidden = last_is_hidden and not self._shows_stop
        visible = token_ids[:-1] if last_is_hidden else token_ids
        if not self._goes_one_by_one:
            return Shown(self._detokenizer.push(visible) if visible else "", len(token_ids), [])
        text, offsets = "", list[int]()
        for token_id in visible:
            offsets.append(self._num_characters)
            certain = self._detokenizer.push((token_id,))
            self._num_characters += len(certain)
            text += self._matcher.push(certain)
            if self._matcher.matched:
                break
        else:
            offsets += [self._num_characters] * last_is_hidden
        return Shown(text, len(offsets), offsets if self._has_offsets else [])

    def finish(self) -> str:
        """What is left when no token will follow."""
        text = self._matcher.push(self._detokenizer.finish())
        return text if self._matcher.matched else text + self._matcher.flush()

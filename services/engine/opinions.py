"""What a model thinks of tokens that another one wrote, read off the pass that catches up on them.

The logits at the position before a token say what this model would have written in its place, from the
same prefix and with the same draw. No pass is run for it: the tokens must be fed anyway at a hand-off.
"""

import sys
from dataclasses import dataclass

from .matcher import Matcher
from .sampling import SamplingParams
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a model would have written at [start, start + len(token_ids)) of a sequence."""

    sequence: Sequence
    start: int
    token_ids: list[int]

    @property
    def num_agreed(self) -> int:
        """At how many of these places the sequence holds just that."""
        there = self.sequence.tokens[self.start : self.start + len(self.token_ids)]
        return sum(mine == its for mine, its in zip(self.token_ids, there, strict=True))


@dataclass(frozen=True, slots=True)
class Past:
    """A sequence as it was when it had `length` tokens."""

    sequence: Sequence
    length: int

    @property
    def sampling(self) -> SamplingParams:
        """How its tokens are drawn."""
        return self.sequence.sampling

    @property
    def tokens(self) -> list[int]:
        """The tokens that it had."""
        return self.sequence.tokens[: self.length]

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.sequence.num_prompt_tokens

    @property
    def position(self) -> int:
        """Place in the answer of the token that came next."""
        return self.length - self.sequence.num_prompt_tokens

    @property
    def matcher(self) -> Matcher | None:
        """What follows its answer through the grammar."""
        return self.sequence.matcher


def first_output(sequence: Sequence, end: int) -> int:
    """The first token index in [num_computed, end) whose logits are needed to run a sequence up to `end`."""
    return max(sequence.num_computed, min(end, sequence.opinions_from, sequence.drafts_from) - 1)


def places_of_opinion(sequence: Sequence, start: int, count: int) -> range:
    """The tokens of a sequence on which there is to be an opinion: those that are known, wanted and no drafts.

    Args:
        sequence: its tokens.
        start: index of the token that the first of `count` rows of logits predicts.
        count: rows of logits.
    """
    return range(max(start, sequence.opinions_from), min(start + count, len(sequence), sequence.drafts_from))


def opinion_on(sequence: Sequence, places: range, token_ids: list[int]) -> Opinion:
    """The opinion on those tokens; what comes after them still waits for one.

    Args:
        sequence: its tokens.
        places: what `places_of_opinion` gave, not empty.
        token_ids: what the model would have written there, parallel to `places`.
    """
    end = min(len(sequence), sequence.drafts_from)
    sequence.opinions_from = places.stop if places.stop < end else sys.maxsize
    return Opinion(sequence, places.start, token_ids)

"""The exact judge of the embedded pair's language: do two sentences say the same?

They do when their numbers, in order and with their operators, are the same, and so are the roles: who,
what, and whether it was a gain or a loss. Wording and word order are left aside. A word that the
language does not have counts as a role, so garbled text never passes for mere wording.
"""

import re
from dataclasses import dataclass

_PART = re.compile(r"\d+|[-+=]|[^\W\d_]+")
_DIRECTIONS = {"gets": "gain", "adds": "gain", "gives": "loss", "short": "loss"}
_WORDING = frozenset({
    "after", "and", "at", "begin", "first", "for", "has", "is", "makes", "more", "next",
    "now", "of", "so", "starts", "that", "the", "then", "to", "up", "with",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Facts:
    """What a sentence says, wording aside."""

    numbers: tuple[str, ...]
    """Numbers and operators in order."""
    roles: tuple[str, ...]
    """Names, things, directions and unknown words, sorted."""


def facts_of(sentence: str) -> Facts:
    """Read the facts of a sentence."""
    numbers, roles = [], []
    for part in _PART.findall(sentence):
        if not part.isalpha():
            numbers.append(part)
        elif part.lower() not in _WORDING:
            roles.append(_DIRECTIONS.get(part, part))
    return Facts(tuple(numbers), tuple(sorted(roles)))


def sentences_agree(ours: str, theirs: str) -> bool:
    """Whether the difference between two sentences is mere wording (neutral), not meaning (divergent)."""
    return facts_of(ours) == facts_of(theirs)

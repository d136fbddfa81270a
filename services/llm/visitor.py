"""A home's request as this tier knows it."""

from dataclasses import dataclass

from ..engine.sequence import Sequence

VisitorKey = tuple[int, int]
"""Stream of the home, and the request's number there."""


@dataclass(eq=False, slots=True)
class Visitor:
    """A sequence that comes and goes. Pended between visits, its KV kept."""

    key: VisitorKey
    sequence: Sequence
    visit_number: int = 0
    num_left: int = 0
    """Tokens that this visit may still write; 0 between visits."""
    num_reported: int = 0
    """Token positions already told to the home."""
    num_opinions: int = 0
    """Tokens of the small model that were looked at, not told to the home yet."""
    num_agreed_opinions: int = 0
    """Those of them that this model would have written, too."""
    num_recorded: int = 0
    """Leading tokens of the sequence that the opinion log holds already."""

    def num_new_positions(self) -> int:
        """Token positions computed since this was last asked."""
        new = self.sequence.num_positions - self.num_reported
        self.num_reported = self.sequence.num_positions
        return new

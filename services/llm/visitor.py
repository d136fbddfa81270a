"""A home's request as this tier knows it."""

from dataclasses import dataclass

from torch import Tensor

from ..engine.sequence import Sequence
from ..mesh.tracing import OpenSpan
from ..policies.policy import HOME, Policy, RequestView

VisitorKey = tuple[int, int]
"""Stream of the home, and the request's number there."""


@dataclass(eq=False, slots=True)
class Visitor:
    """A sequence that comes and goes. Pended between visits, its KV kept."""

    key: VisitorKey
    sequence: Sequence
    view: RequestView
    policy: Policy | None = None
    """Where it has anything to decide here."""
    span: OpenSpan | None = None
    """Of its trace; None where there is none."""
    num_visits: int = 0
    """Visits but reservations so far."""
    visit_number: int = 0
    num_left: int = 0
    """Tokens that this visit may still write; 0 between visits."""
    until: frozenset[int] = frozenset()
    """Tokens that end this visit."""
    judges: bool = False
    """Whether this visit has drafts that are not judged yet."""
    sent_draft_logits: Tensor | None = None
    """float32 [drafts, vocabulary], the small model's, where they came along."""
    next_tier: int = HOME
    """Who writes after this visit, where the policy said so."""
    arrived_ns: int = 0
    """When this visit came, by the monotonic clock."""
    num_steps: int = 0
    """Steps that were run for this visit."""
    waited_ns: int = 0
    """From its arrival until the first of them could have begun."""
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

"""A client's request at its home: what is committed, what is still a proposal, and who has it."""

from dataclasses import dataclass, field
from enum import Enum

from ..engine.sequence import Sequence
from ..mesh.wire import common_pb2 as pb
from ..policies.policy import Policy, RequestView


class Place(Enum):
    """Where a request is."""

    QUEUED = "queued"
    """Waits for KV here."""
    HOME = "home"
    """The small model writes."""
    AWAY = "away"
    """A larger tier writes."""
    STALLED_ROUTER = "stalled_router"
    """Needs a verdict, and the router is out of reach."""
    STALLED_TIER = "stalled_tier"
    """Needs a larger tier that is out of reach."""
    DONE = "done"


@dataclass(eq=False, slots=True)
class Request:
    """One request. `sequence.tokens[:length]` is committed, the rest is the suffix: proposals in order."""

    stream_id: int
    sequence_id: int
    number: int
    """Unique in this home; the name under which larger tiers know the request."""
    request_id: str
    traceparent: str
    sequence: Sequence
    policy: Policy
    view: RequestView
    length: int
    stop_token_ids: frozenset[int]
    place: Place = Place.QUEUED
    stalled_since_s: float = 0.0
    tier_length: int = 0
    """Tokens that the larger tier knows; 0 while it holds nothing."""
    num_visits: int = 0
    generation: int = 0
    """Counts the roll-backs, so that verdicts on dropped proposals are recognised."""
    early_scores: dict[int, float] = field(default_factory=dict)
    """Scores, by position, that came before those of earlier positions."""
    usage: pb.Usage = field(default_factory=lambda: pb.Usage(num_committed_tokens=[0, 0], num_computed_tokens=[0, 0]))

    @property
    def key(self) -> tuple[int, int]:
        """The client's name for the request."""
        return self.stream_id, self.sequence_id

    @property
    def num_unjudged(self) -> int:
        """Proposals that nobody has accepted yet."""
        return len(self.sequence) - self.length

    @property
    def may_propose(self) -> bool:
        """Whether feeding the last token could give a proposal that is of use."""
        tokens = self.sequence.tokens
        return len(tokens) < self.sequence.max_length and (
            not self.num_unjudged or tokens[-1] not in self.stop_token_ids
        )

    def commit(self, token_id: int, tier: int) -> pb.FinishReason.ValueType | None:
        """Count the first token of the suffix as part of the answer; why the answer is over, if it is."""
        self.length += 1
        self.view.position += 1
        self.usage.num_committed_tokens[tier] += 1
        if token_id in self.stop_token_ids:
            return pb.FINISH_REASON_STOP
        return pb.FINISH_REASON_LENGTH if self.view.num_left <= 0 else None

    def drop_suffix(self) -> None:
        """Roll back all proposals."""
        self.sequence.truncate(self.length)
        self.generation += 1
        self.early_scores.clear()

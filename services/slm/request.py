"""A client's request at its home: what is committed, what is still a proposal, and who has it."""

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from ..engine.sequence import Sequence
from ..mesh.wire import common_pb2 as pb
from ..policies.policy import Policy, RequestView


class Place(Enum):
    """Where a request is."""

    QUEUED = "queued"
    """Waits for KV here."""
    RESERVING = "reserving"
    """Has KV here, and waits for KV on the larger tier; meanwhile its prompt is computed, and nothing committed."""
    HOME = "home"
    """The small model writes."""
    AWAY = "away"
    """A larger tier writes."""
    STALLED_ROUTER = "stalled_router"
    """Needs a verdict, and the router is out of reach."""
    STALLED_TIER = "stalled_tier"
    """Needs a larger tier that is out of reach."""
    DONE = "done"


@dataclass(slots=True)
class Proposal:
    """What is known of a token of the suffix."""

    entropy: float = math.nan
    """Of the distribution that it was drawn from, nats; NaN where no policy asked."""
    score: float | None = None
    """The router's; NaN where it could not tell, None while it has not answered."""
    logprobs: pb.TokenLogprobs | None = None


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
    has_started: bool = False
    """Whether KV is reserved on every tier that may write."""
    is_asked: bool = False
    """Whether the policy was asked for the writer of the next token ahead of any proposal."""
    runs_ahead: bool = False
    """Away: whether the small model goes on proposing meanwhile."""
    tier_length: int = 0
    """Tokens that the larger tier knows; 0 while it holds nothing."""
    num_own: int = 0
    """Committed tokens at the end that the small model wrote, since the larger one wrote last."""
    num_visits: int = 0
    generation: int = 0
    """Counts the roll-backs, so that verdicts on dropped proposals are recognised."""
    suffix: deque[Proposal] = field(default_factory=deque)
    usage: pb.Usage = field(
        default_factory=lambda: pb.Usage(
            num_committed_tokens=[0, 0], num_computed_tokens=[0, 0], num_cached_tokens=[0, 0]
        )
    )

    @property
    def key(self) -> tuple[int, int]:
        """The client's name for the request."""
        return self.stream_id, self.sequence_id

    @property
    def next_token(self) -> int:
        """The first token of the suffix."""
        return self.sequence.tokens[self.length]

    @property
    def is_judgeable(self) -> bool:
        """Whether all that its policy reads of the first proposal of its suffix is there."""
        return bool(self.suffix) and (self.policy.scorer is None or self.suffix[0].score is not None)

    @property
    def may_propose(self) -> bool:
        """Whether feeding the last token could give a proposal that is of use."""
        tokens = self.sequence.tokens
        return len(tokens) < self.sequence.max_length and (not self.suffix or tokens[-1] not in self.stop_token_ids)

    def propose(self, token_id: int, proposal: Proposal) -> None:
        """Add a proposal to the suffix."""
        self.sequence.append([token_id])
        self.suffix.append(proposal)

    def confirms(self, token_id: int) -> bool:
        """Whether a larger tier's token is the first of the suffix, which then stays; else the suffix is dropped."""
        if self.suffix and self.next_token == token_id:
            return True
        self.drop_suffix()
        return False

    def commit(self, tier: int) -> pb.FinishReason.ValueType | None:
        """Make the first token of the suffix part of the answer; why the answer is over, if it is."""
        token_id = self.next_token
        self.suffix.popleft()
        self.length += 1
        self.view.position += 1
        self.is_asked = False
        self.num_own = 0 if tier else self.num_own + 1
        self.usage.num_committed_tokens[tier] += 1
        if token_id in self.stop_token_ids:
            return pb.FINISH_REASON_STOP
        return pb.FINISH_REASON_LENGTH if self.view.num_left <= 0 else None

    def drop_suffix(self) -> None:
        """Roll back all proposals. They lie behind the prompt, so no block is touched that others may share."""
        if self.suffix:
            self.suffix.clear()
            self.sequence.truncate(self.length)
            self.generation += 1

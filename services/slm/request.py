"""A client's request at its home: what is committed, what is still a proposal, and who has it."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from torch import Tensor

from ..engine.sequence import Sequence
from ..mesh.tracing import OpenSpan
from ..mesh.wire import common_pb2 as pb
from ..policies.policy import HOME, Policy, RequestView
from ..policies.reading import Reading
from .trip import StepMark, Trip


class Place(Enum):
    """Where a request is."""

    QUEUED = "queued"
    """Waits for KV here."""
    RESERVING = "reserving"
    """Waits for KV on a larger tier; meanwhile its prompt is computed here, and nothing committed."""
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

    reading: Reading = field(default_factory=Reading)
    """What its policy asked to be read of the distribution that it was drawn from."""
    score: float | None = None
    """The router's; NaN where it could not tell, None while it has not answered."""
    logprobs: pb.TokenLogprobs | None = None
    logits: Tensor | None = None
    """float32 [vocabulary], raw, where the larger model will want them to judge it."""
    made: StepMark | None = None
    """The step that made it; None where a larger tier did."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy decided of the token that is committed next, for the record."""

    proposal: int
    score: float | None
    entropy: float | None
    """Nats, where the policy reads it."""
    is_routed: bool
    """Whether it is for a larger model to write."""


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
    reach: frozenset[int]
    """Tiers that may write."""
    length: int
    stop_token_ids: frozenset[int]
    place: Place = Place.QUEUED
    stalled_since_s: float = 0.0
    has_started: bool = False
    """Whether KV is reserved on every tier that may write."""
    acts: bool = True
    """Whether what its policy decides is done; in an audit it is not."""
    follows_target: bool = False
    """Whether its threshold moves with the share that is to be held."""
    decision: Decision | None = None
    is_asked: bool = False
    """Whether the policy was asked for the writer of the next token ahead of any proposal."""
    sends_logits: bool = False
    """Whether its drafts travel with their logits."""
    reports_scores: bool = False
    """Whether its client is told the router's scores."""
    refused_score: float | None = None
    """Of the proposal in whose place a larger tier writes next."""
    turned_down: StepMark | None = None
    """Of the proposal for which a larger tier writes next: the step that made it."""
    trip: Trip | None = None
    """The visit that it is on."""
    visited: int = HOME
    """The tier that it is at, waits for, or was at last."""
    runs_ahead: bool = False
    """Away: whether the small model goes on proposing meanwhile."""
    num_held: int = 0
    """Leading proposals of the suffix that the policy holds as drafts."""
    is_submitted: bool = False
    """Away: whether the drafts that are held went along and wait for the judgement."""
    known_lengths: list[int] = field(default_factory=list)
    """By tier: committed tokens that it knows; 0 while it holds nothing. That of HOME has no meaning."""
    reserved: set[int] = field(default_factory=set)
    """Larger tiers that have set KV aside."""
    num_own: int = 0
    """Committed tokens at the end that the small model wrote, since a larger one wrote last."""
    num_visits: int = 0
    num_vain_visits: int = 0
    """Visits of late of which nothing was committed."""
    generation: int = 0
    """Counts the roll-backs, so that verdicts on dropped proposals are recognised."""
    suffix: deque[Proposal] = field(default_factory=deque)
    usage: pb.Usage = field(default_factory=pb.Usage)
    span: OpenSpan | None = None
    """Of its trace; None where there is none. For that are kept besides:"""
    started_ns: int = 0
    """When KV was reserved wherever it may go, by the monotonic clock; 0 before."""
    num_steps: int = 0
    """Steps that made a proposal for it."""
    score_wait_ns: int = 0
    """Sum over the scores that came in time: from the step that made the proposal to its score."""

    def __post_init__(self) -> None:
        """Count for each tier."""
        num_tiers = self.view.num_tiers
        self.known_lengths = [0] * num_tiers
        for counts in (
            self.usage.num_committed_tokens,
            self.usage.num_computed_tokens,
            self.usage.num_cached_tokens,
        ):
            counts.extend([0] * num_tiers)

    @property
    def key(self) -> tuple[int, int]:
        """The client's name for the request."""
        return self.stream_id, self.sequence_id

    @property
    def next_token(self) -> int:
        """The first token of the suffix."""
        return self.sequence.tokens[self.length]

    @property
    def token_in_question(self) -> int:
        """The first token of the suffix that the policy has not seen yet."""
        return self.sequence.tokens[self.length + self.num_held]

    @property
    def in_question(self) -> Proposal:
        """What is known of it."""
        return self.suffix[self.num_held]

    @property
    def is_judgeable(self) -> bool:
        """Whether all that its policy reads of the next proposal of its suffix is there."""
        return len(self.suffix) > self.num_held and (self.policy.scorer is None or self.in_question.score is not None)

    @property
    def may_propose(self) -> bool:
        """Whether feeding the last token could give a proposal that is of use."""
        tokens = self.sequence.tokens
        return len(tokens) < self.sequence.max_length and (not self.suffix or tokens[-1] not in self.stop_token_ids)

    @property
    def drafts(self) -> list[int]:
        """Token ids of the drafts that are held."""
        return self.sequence.tokens[self.length : self.length + self.num_held]

    def draft_logits(self) -> list[Tensor]:
        """Of the drafts that are held; fewer, where some were proposed before they were wanted."""
        return [draft.logits for draft in islice(self.suffix, self.num_held) if draft.logits is not None]

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
        self.num_held = max(0, self.num_held - 1)
        self.view.position += 1
        self.is_asked = False
        self.num_own = 0 if tier else self.num_own + 1
        self.usage.num_committed_tokens[tier] += 1
        if token_id in self.stop_token_ids:
            return pb.FINISH_REASON_STOP
        return pb.FINISH_REASON_LENGTH if self.view.num_left <= 0 else None

    def drop_suffix(self, keep: int = 0) -> None:
        """Roll back all proposals but the first `keep`.

        They lie behind the prompt, so no block is touched that others may share.
        """
        if len(self.suffix) > keep:
            while len(self.suffix) > keep:
                self.suffix.pop()
            self.num_held = min(self.num_held, keep)
            self.sequence.truncate(self.length + keep)
            self.generation += 1

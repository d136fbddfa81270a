"""The interface between a routing algorithm and the runtime: `route`, `send`, `receive`.

A model proposes; a policy judges. `route` sees a batch of proposals after a forward pass and says of each
whether it is kept and who writes next. `send` says how long a visit to another tier may last. `receive` says
how much of what came back is taken. A policy may also hold proposals back as drafts and let a larger model
judge them all in one pass: then `verify` is the larger model's side of `receive`.

`docs/policies.md` has a worked example.
"""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from ..engine.sampling import Row

HOME = 0
"""The small model's tier. Larger tiers count from 1."""
NUM_TOP_LOGITS = 10
"""How many logits `Feature.TOP_LOGITS` gives."""
MAX_DRAFTS = 64
"""Proposals of a request that may wait for a larger model's judgement; with so many they are sent, held or not."""
MAX_EXTRA = 64
"""Numbers that may travel with a visit."""


class Feature(Enum):
    """A number, or a few, of each proposal that a policy can ask for; of the raw distribution that proposed it."""

    ENTROPY = auto()
    """Nats."""
    MAX_PROBABILITY = auto()
    """Of the likeliest token."""
    TOP_LOGITS = auto()
    """The `NUM_TOP_LOGITS` largest raw logits, largest first; fewer where the vocabulary has fewer."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that requests may set, with its range; both ends belong to it."""

    name: str
    """As clients write it: `{"routing": {"policy": ..., NAME: ...}}`."""
    summary: str
    minimum: float
    maximum: float
    default: float | tuple[float, ...] | None = None
    """None where requests must name it. A tuple only for `per_tier`, and for as many tiers as it has values."""
    is_whole: bool = False
    """Whether only whole numbers are taken."""
    per_tier: bool = False
    """Whether it is a list with a value for each tier, the small model's first."""


def threshold(minimum: float, maximum: float, default: float, summary: str) -> Parameter:
    """The parameter that most policies have."""
    return Parameter("threshold", summary, minimum, maximum, default)


def setting(**parameters: float) -> Mapping[str, float]:
    """Parameters by name, for `Policy.never` and `Policy.always`."""
    return MappingProxyType(parameters)


@dataclass(slots=True)
class RequestView:
    """What a policy may know of one request."""

    seed: int
    parameters: Mapping[str, tuple[float, ...]]
    """All that the policy declares, by name; one value, or one for each tier."""
    max_tokens: int
    """Tokens that the answer may have."""
    num_tiers: int = 2
    """Of the mesh."""
    num_tokens: int = 0
    """Size of the vocabulary: ids that the tokenizer knows."""
    is_greedy: bool = True
    """Whether the likeliest token is always taken."""
    position: int = 0
    """Tokens of the answer that are committed: the place of the one that is committed next."""
    num_drafts: int = 0
    """In `route`: proposals held as drafts before the one in question. In `send`: drafts that go along."""
    extra: tuple[float, ...] = ()
    """On a visited tier: what `send` gave the visit."""
    memory: dict[str, Any] = field(default_factory=dict)
    """The policy's own notes on this request. Each tier has its own; none outlives the service."""

    @property
    def num_left(self) -> int:
        """Tokens that may still be committed."""
        return self.max_tokens - self.position

    @property
    def large(self) -> int:
        """The largest model's tier."""
        return self.num_tiers - 1

    @property
    def threshold(self) -> float:
        """The parameter of that name."""
        return self.number("threshold")

    def number(self, name: str) -> float:
        """A parameter that has one value."""
        (value,) = self.parameters[name]
        return value


@dataclass(frozen=True, slots=True)
class Proposals:
    """A batch of proposals of one tier, one a request, all of one policy. Parallel lists."""

    requests: list[RequestView]
    token_ids: list[int]
    tier: int = HOME
    """Whose proposals they are."""
    entropies: list[float] = field(default_factory=list)
    """`Feature.ENTROPY`; empty unless the policy asks for it, as are the next two."""
    max_probabilities: list[float] = field(default_factory=list)
    """`Feature.MAX_PROBABILITY`."""
    top_logits: list[list[float]] = field(default_factory=list)
    """`Feature.TOP_LOGITS`."""
    scores: list[float] = field(default_factory=list)
    """In [0, 1], or NaN where the scorer could not tell; empty unless the policy names a scorer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a proposal, and who writes next."""

    keeps: bool
    """Whether the proposal stands; one that does not is rolled back."""
    tier: int
    """Who writes next. For drafts: who judges them."""
    is_draft: bool = False
    """Whether what is kept, and what was held before it, waits for the judgement of `tier`; else it is committed."""
    waits: bool = False
    """For drafts: whether the small model drafts on first. Without a way to go on the drafts are sent all the same."""
    extra: tuple[float, ...] = ()
    """On a visited tier: numbers for `receive` at home."""


ACCEPT = Verdict(keeps=True, tier=HOME)
"""The proposal is committed, and the small model goes on. On a larger tier: committed, and the visit ends."""


def reject(tier: int) -> Verdict:
    """The proposal is dropped; `tier` writes in its place."""
    return Verdict(keeps=False, tier=tier)


def hold(tier: int) -> Verdict:
    """The proposal becomes a draft for `tier` to judge, and the small model drafts on."""
    return Verdict(keeps=True, tier=tier, is_draft=True, waits=True)


def submit(tier: int, *, keeps: bool = True) -> Verdict:
    """The drafts held so far go to `tier`, which judges them; with the proposal in question, or without it."""
    return Verdict(keeps=keeps, tier=tier, is_draft=True)


@dataclass(frozen=True, slots=True)
class Visit:
    """What a visited tier may do."""

    max_tokens: int = 1
    """Tokens that it may write itself; accepted drafts do not count."""
    until: frozenset[int] = frozenset()
    """Token ids after any of which the visit ends."""
    extra: tuple[float, ...] = ()
    """Numbers for the policy at that tier, at most `MAX_EXTRA`."""


@dataclass(frozen=True, slots=True)
class Return:
    """What came back from a visited tier, all of a visit or the part since the last such message."""

    tier: int
    token_ids: list[int]
    """What the tier wrote, after the accepted drafts."""
    is_over: bool = True
    """Whether the visit ended with this."""
    num_drafts: int = 0
    """Drafts that went along, in the message that tells of their judgement; else 0."""
    num_accepted: int = 0
    """And how many of them stand, from the first on. These are committed, and count as the small model's."""
    extra: tuple[float, ...] = ()
    """What the policy at that tier had to say."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts at the tier that judges them, of some requests of one policy. Parallel lists."""

    requests: list[RequestView]
    token_ids: list[list[int]]
    """k drafts each, perhaps none."""
    logits: list[Tensor]
    """float [k + 1, vocabulary] each, this tier's, raw: row j is what it gives in place of draft j, the last what
    it gives after all of them."""
    rows: list[Sequence[Row]]
    """k + 1 each: what `engine.sampling` must know to draw from the row of logits beside it."""
    draft_logits: list[Tensor | None]
    """float32 [k, vocabulary] each, the small model's, raw, where the policy `wants_draft_logits`."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a larger model says of drafts."""

    num_accepted: int
    """How many of them stand, from the first on; the rest is rolled back on every tier."""
    token_id: int | None
    """What it writes after them itself. None where it adds nothing, which ends the visit."""
    extra: tuple[float, ...] = ()
    """Numbers for `receive` at home."""


class Policy(ABC):
    """A routing algorithm. Subclasses set the class attributes and override what differs.

    One object serves all requests of a service, on the decode thread; what it must remember of one it keeps in
    that request's `memory`. At home it is asked of each proposal in the order of the answer. Where a peer was
    lost, drafts are made again, and it is asked of them again.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    features: ClassVar[frozenset[Feature]] = frozenset()
    scorer: ClassVar[str | None] = None
    """Scorer of the router service that must see each of the small model's proposals first."""
    routes_at_tiers: ClassVar[bool] = False
    """Whether `route` is also asked on a visited tier, of each token that it writes."""
    never: ClassVar[Mapping[str, float] | None] = None
    """Parameters with which the small model writes everything; None where there are none."""
    always: ClassVar[Mapping[str, float] | None] = None
    """Parameters with which the answer is the large model's own; None where there are none."""

    @property
    def judges_drafts(self) -> bool:
        """Whether it has a `verify` of its own."""
        return type(self).verify is not Policy.verify

    @property
    def acts_at_tiers(self) -> bool:
        """Whether visited tiers ask it anything, so that it must be installed there, too."""
        return self.routes_at_tiers or self.judges_drafts

    def check(self, request: RequestView) -> None:  # noqa: B027 (most have nothing to refuse)
        """Refuse parameters that do not go together; each is in its range already.

        Raises:
            InvalidArgument: names the field.
        """

    def reach(self, request: RequestView) -> frozenset[int]:
        """Tiers that may write; KV is reserved on those alone."""
        return frozenset({HOME, request.large})

    def ahead(self, request: RequestView) -> int | None:
        """The tier that writes the next token, where that is known without a proposal: it saves the small model's pass.

        Not asked of scored policies, nor while drafts are held.
        """
        return None

    def route(self, proposals: Proposals) -> Sequence[Verdict]:
        """What becomes of each proposal."""
        return [ACCEPT] * len(proposals.requests)

    def send(self, request: RequestView, tier: int) -> Visit:
        """What a visit to a tier may do."""
        return Visit()

    def receive(self, request: RequestView, returned: Return) -> int:
        """How many of the tokens that the visited tier wrote are taken, from the first on; fewer end the visit."""
        return len(returned.token_ids)

    def wants_draft_logits(self, request: RequestView) -> bool:
        """Whether `verify` reads the small model's logits, which then travel with the drafts."""
        return False

    def verify(self, drafts: Drafts) -> Sequence[Judgement]:
        """Judge drafts, on the tier that they were sent to, after one pass over all of them.

        Raises:
            NotImplementedError: the policy sends none.
        """
        raise NotImplementedError(f"{self.name} sends no drafts")

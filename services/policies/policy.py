"""The interface between a routing algorithm and the runtime.

The runtime proposes with the small model; a policy judges. `route` sees a whole batch of proposals after
a forward pass, `send` says how long a visit to a larger tier may last, `receive` how much of what it
wrote is taken. A policy whose decisions do not depend on the proposal says so in `ahead`, and the small
model's pass is saved.
"""

from abc import ABC
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar

HOME = 0
"""The small model's tier. Larger tiers count from 1."""


class Feature(Enum):
    """A number of each proposal that a policy can ask for."""

    ENTROPY = auto()
    """Of the small model's next-token distribution, nats."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The range of a policy's threshold, and its value where a request names none."""

    minimum: float
    maximum: float
    default: float


@dataclass(slots=True)
class RequestView:
    """What a policy may know of one request."""

    seed: int
    threshold: float
    share: float
    max_tokens: int
    """Tokens that the answer may have."""
    position: int = 0
    """Place in the answer of the token in question."""
    memory: dict[str, Any] = field(default_factory=dict)
    """The policy's own notes on this request."""

    @property
    def num_left(self) -> int:
        """Tokens that may still be written, the one in question included."""
        return self.max_tokens - self.position


@dataclass(frozen=True, slots=True)
class Proposals:
    """A batch of the small model's proposals, one a request, all of one policy. Parallel lists."""

    requests: list[RequestView]
    token_ids: list[int]
    entropies: list[float] = field(default_factory=list)
    """Nats; empty unless the policy asks for `Feature.ENTROPY`."""
    scores: list[float] = field(default_factory=list)
    """In [0, 1] or NaN; empty unless the policy names a scorer."""


class Policy(ABC):
    """A routing algorithm. Subclasses set the class attributes and override what differs."""

    name: ClassVar[str]
    summary: ClassVar[str]
    reach: ClassVar[frozenset[int]] = frozenset({HOME, 1})
    """Tiers that may write; KV is reserved on those alone."""
    features: ClassVar[frozenset[Feature]] = frozenset()
    scorer: ClassVar[str | None] = None
    """Scorer of the router service that must see each proposal first."""
    threshold: ClassVar[Threshold | None] = None
    needs_share: ClassVar[bool] = False
    """Whether requests must name a share of tokens in [0, 1]."""

    def ahead(self, request: RequestView) -> int | None:
        """The tier that writes the next token, where that is known without a proposal. Not asked of scored policies."""
        return None

    def route(self, proposals: Proposals) -> list[int]:
        """The tier of each proposal: HOME accepts it, another drops it and hands the request off."""
        return [HOME] * len(proposals.requests)

    def send(self, request: RequestView) -> int:
        """How many tokens the visited tier may write at most."""
        return 1

    def receive(self, request: RequestView, token_ids: list[int]) -> int:
        """How many of the tokens that the visited tier wrote are taken, from the first on."""
        return len(token_ids)

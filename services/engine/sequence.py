"""One request's tokens and KV on one model."""

import sys
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor

from ..errors import Internal
from .matcher import Matcher
from .sampling import SamplingParams


class State(Enum):
    """Where a sequence is in its life here."""

    NEW = "new"
    """Known, and not in the engine."""
    WAITING = "waiting"
    """Has no KV blocks yet."""
    RUNNING = "running"
    """Is scheduled while it has tokens whose KV is not computed."""
    PENDING = "pending"
    """Keeps its KV and is skipped: the request is on another tier, or waits for a verdict."""
    CLOSED = "closed"
    """Holds nothing any more."""


_MOVES: dict[State, set[State]] = {
    State.NEW: {State.WAITING, State.CLOSED},
    State.WAITING: {State.RUNNING, State.CLOSED},
    State.RUNNING: {State.PENDING, State.CLOSED},
    State.PENDING: {State.RUNNING, State.CLOSED},
    State.CLOSED: set(),
}


@dataclass(eq=False, slots=True)
class Sequence:
    """Tokens known here, how many of them have KV, and the blocks that hold it.

    Progress is two integers, `num_computed <= len(tokens)`; what is still to be fed is the rest. The last
    token proposed is known but not computed until the next step feeds it.
    """

    tokens: list[int]
    max_length: int
    """The longest that the sequence may become: what it has reserved."""
    sampling: SamplingParams
    num_prompt_tokens: int
    state: State = State.NEW
    num_computed: int = 0
    """Tokens whose KV is in the pool."""
    num_positions: int = 0
    """Token positions computed so far, those of dropped proposals too: what the sequence has cost."""
    blocks: list[int] = field(default_factory=list)
    slot: int = -1
    """Row of the engine's block table; -1 without one."""
    num_bypassed: int = 0
    """How often a later sequence got blocks while this one waited."""
    num_cached: int = 0
    """Tokens whose KV was in the pool when it was admitted, computed for an earlier sequence."""
    num_registered_blocks: int = 0
    """Leading blocks that the pool knows by what they hold, so that others may share them."""
    is_prompt_registered: bool = False
    """Whether the pool knows its prompt's blocks."""
    is_held: bool = False
    """Waits for KV from elsewhere, and is not admitted meanwhile."""
    is_ahead: bool = False
    """Its tokens but the last are computed in the background, and nothing is proposed."""
    opinions_from: int = sys.maxsize
    """First token of which the model is to say whether it would have written it."""
    drafts_from: int = sys.maxsize
    """First token that is a draft: the pass that computes the last one gives the logits of all, and no proposal."""
    draft_logits: list[Tensor] = field(default_factory=list)
    """Of drafts, float [n, output rows] each: what earlier steps have given of them."""
    keeps_hidden_states: bool = False
    """Whether the hidden states of drafts are wanted beside their logits."""
    draft_hidden_states: list[Tensor] = field(default_factory=list)
    """Of drafts, float [n, hidden] each, parallel to the logits; none unless they are wanted."""
    matcher: Matcher | None = None
    """What follows its answer through the grammar, where the engine has it and there is one."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_uncomputed(self) -> int:
        """Tokens to feed before the next proposal; ahead of it, all that can be fed without making one."""
        return len(self.tokens) - self.num_computed - self.is_ahead

    @property
    def position(self) -> int:
        """Place in the answer of the token that comes next: 0 is the first after the prompt."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def can_go_on(self) -> bool:
        """Whether its grammar, where it has one, tells which tokens may come next."""
        return self.matcher is None or self.matcher.mask(self.tokens[self.num_prompt_tokens :]) is not None

    def move(self, state: State) -> None:
        """Change state, where that change makes sense.

        Raises:
            Internal: it does not.
        """
        if state is not self.state:
            if state not in _MOVES[self.state]:
                raise Internal(f"a {self.state.value} sequence cannot become {state.value}")
            self.state = state

    def append(self, tokens: list[int]) -> None:
        """Add tokens at the end.

        Raises:
            Internal: more than was reserved.
        """
        if len(self.tokens) + len(tokens) > self.max_length:
            raise Internal(f"{len(self.tokens)} + {len(tokens)} tokens are more than the {self.max_length} reserved")
        self.tokens += tokens

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on, their KV, and that any were drafts. Blocks stay reserved.

        Raises:
            Internal: the length is negative or beyond the end.
        """
        if not 0 <= length <= len(self.tokens):
            raise Internal(f"cannot truncate {len(self.tokens)} tokens to {length}")
        del self.tokens[length:]
        self.take_draft_logits()
        self.num_computed = min(self.num_computed, length)

    def rewind(self) -> None:
        """Let the last token be fed again, so that the next step proposes anew after it.

        Before drafts it is the last token that is none: the first draft is predicted from there.
        """
        self.num_computed = min(self.num_computed, min(len(self.tokens), self.drafts_from) - 1)

    def draft(self, tokens: list[int]) -> None:
        """Add tokens at the end as drafts, perhaps none, to be judged by this model's logits.

        Raises:
            Internal: more than was reserved.
        """
        self.drafts_from = len(self.tokens)
        self.append(tokens)

    def take_draft_logits(self) -> list[Tensor]:
        """The logits of all drafts, in parts; from now on there are no drafts, nor hidden states of them."""
        parts, self.draft_logits, self.drafts_from = self.draft_logits, [], sys.maxsize
        self.draft_hidden_states = []
        return parts

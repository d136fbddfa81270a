"""What comes back: pieces as they are written, and whole answers. Plain values, apart from the wire."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..mesh.wire import common_pb2, gateway_pb2

FinishReason = Literal["stop", "length"]
_REASONS: dict[int, FinishReason] = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
}


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities at one position, of the raw distribution of the model that wrote the token."""

    logprob: float
    """Of the token written."""
    likeliest: tuple[tuple[int, float], ...]
    """Token ids with theirs, likeliest first."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer took. Where something is told for each tier, the small model's comes first.

    What only the mesh can tell is empty or 0 where the gateway ended the answer itself, at a stop string.
    """

    num_prompt_tokens: int = 0
    num_committed_tokens: tuple[int, ...] = ()
    """Tokens of the answer, a stop token included, by the tier that wrote them."""
    num_computed_tokens: tuple[int, ...] = ()
    """Positions computed by tier: prompt, catch-up and dropped proposals included."""
    num_cached_tokens: tuple[int, ...] = ()
    """Prompt tokens by tier whose KV was there already."""
    num_scored_tokens: int = 0
    num_rejected_tokens: int = 0
    num_hand_offs: int = 0
    degraded: bool = False
    """The answer was finished by the small model alone, because another service was out of reach."""
    mode: str = ""
    """What became of the request: "on", "off" or "audit"."""

    @property
    def num_answer_tokens(self) -> int:
        """All tokens of the answer."""
        return sum(self.num_committed_tokens)

    @property
    def llm_share(self) -> float:
        """The share of the answer that the small model did not write, 0 of an empty one."""
        return sum(self.num_committed_tokens[1:]) / max(self.num_answer_tokens, 1)


@dataclass(frozen=True, slots=True)
class Piece:
    """What came at once."""

    text: str
    """Text that is certain: no part of a character, nor of what may become a stop string."""
    token_ids: tuple[int, ...] = ()
    tiers: tuple[int, ...] = ()
    """Parallel to `token_ids`: the number of the tier that wrote each, 0 being the small model's."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Parallel to `token_ids` where asked for, else empty."""
    finish_reason: FinishReason | None = None
    """In the last piece, which has the usage, too."""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, or what there is of it so far."""

    text: str
    token_ids: tuple[int, ...]
    tiers: tuple[int, ...]
    """As in `Piece`."""
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    """None while it is not finished."""
    usage: Usage


def joined(pieces: Iterable[Piece]) -> Answer:
    """The answer that pieces make, in their order."""
    parts = list(pieces)
    last = parts[-1] if parts else Piece("")
    return Answer(
        text="".join(piece.text for piece in parts),
        token_ids=tuple(token_id for piece in parts for token_id in piece.token_ids),
        tiers=tuple(tier for piece in parts for tier in piece.tiers),
        logprobs=tuple(entry for piece in parts for entry in piece.logprobs),
        finish_reason=last.finish_reason,
        usage=last.usage or Usage(),
    )


def piece_of(response: gateway_pb2.GenerateTextResponse) -> Piece:
    """A piece from the wire."""
    return Piece(
        text=response.text_delta,
        token_ids=tuple(response.token_ids),
        tiers=tuple(response.tiers),
        logprobs=tuple(
            TokenLogprobs(entry.logprob, tuple(zip(entry.top_token_ids, entry.top_logprobs, strict=True)))
            for entry in response.logprobs
        ),
        finish_reason=_REASONS.get(response.finish_reason),
        usage=_usage_of(response.usage) if response.HasField("usage") else None,
    )


def _usage_of(usage: common_pb2.Usage) -> Usage:
    return Usage(
        num_prompt_tokens=usage.num_prompt_tokens,
        num_committed_tokens=tuple(usage.num_committed_tokens),
        num_computed_tokens=tuple(usage.num_computed_tokens),
        num_cached_tokens=tuple(usage.num_cached_tokens),
        num_scored_tokens=usage.num_scored_tokens,
        num_rejected_tokens=usage.num_rejected_tokens,
        num_hand_offs=usage.num_hand_offs,
        degraded=usage.degraded,
        mode=usage.mode,
    )

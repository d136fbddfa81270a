"""Cuts a message of the home into what belongs to each sequence.

Log-probabilities come for some sequences of a message only, and an entry may belong to one that is closed
here already. So a sequence's id itself says whether it has any.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ..mesh.wire import common_pb2, model_pb2

_HAS_LOGPROBS = 1 << 62


@dataclass(frozen=True, slots=True)
class Delivery:
    """Tokens of one sequence that were committed in one step."""

    sequence_id: int
    token_ids: list[int]
    tiers: list[int]
    logprobs: list[common_pb2.TokenLogprobs]
    """Parallel to `token_ids` where the sequence asks for them, else empty."""
    scores: list[float]
    """Parallel to `token_ids`, NaN where there is none; empty where no sequence of the message asks for them."""
    is_whole: bool
    """Whether the message has all that it should have for this sequence."""


def make_sequence_id(number: int, *, has_logprobs: bool) -> int:
    """The id of the sequence of a number below 2**62."""
    return number | _HAS_LOGPROBS if has_logprobs else number


def cut(response: model_pb2.GenerateResponse) -> Iterator[Delivery]:
    """The deliveries of a message, in its order."""
    token_ids, tiers, logprobs = list(response.token_ids), list(response.tiers), list(response.logprobs)
    scores = list(response.scores)
    start = told = 0
    for sequence_id, num_tokens in zip(response.sequence_ids, response.num_tokens, strict=False):
        end, num_told = start + num_tokens, num_tokens if sequence_id & _HAS_LOGPROBS else 0
        own = logprobs[told : told + num_told]
        is_whole = len(own) == num_told and len(scores) in (0, len(token_ids))
        yield Delivery(sequence_id, token_ids[start:end], tiers[start:end], own, scores[start:end], is_whole)
        start, told = end, told + num_told

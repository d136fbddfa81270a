"""What is asked of the mesh and of the reference alike, and what either answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from ..engine.sampling import SamplingParams
from ..mesh.routing import routing_to_wire
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2


@dataclass(frozen=True, slots=True)
class Question:
    """A request, as far as it decides the answer."""

    number: int
    """Of its prompt, for messages."""
    prompt: tuple[int, ...]
    policy: str
    parameters: Mapping[str, tuple[float, ...]]
    """All that the policy declares."""
    max_tokens: int
    is_greedy: bool = True
    """Else sampled at temperature 1."""
    ignores_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()

    def sampling(self, eos_token_ids: frozenset[int]) -> SamplingParams:
        """How the tokens are drawn; the number is the seed."""
        ends = self.stop_token_ids if self.ignores_eos else self.stop_token_ids | eos_token_ids
        return SamplingParams(temperature=0.0 if self.is_greedy else 1.0, seed=self.number, stop_token_ids=ends)

    def to_wire(self, timeout_s: float) -> model_pb2.OpenRequest:
        """The message that opens it, without a number."""
        return model_pb2.OpenRequest(
            request_id="conformance",
            prompt_token_ids=self.prompt,
            max_tokens=self.max_tokens,
            sampling=pb.SamplingParams(
                temperature=0.0 if self.is_greedy else 1.0,
                seed=self.number,
                stop_token_ids=sorted(self.stop_token_ids),
                ignore_eos=self.ignores_eos,
            ),
            routing=routing_to_wire(self.policy, self.parameters),
            timeout_ms=int(timeout_s * 1000),
        )


@dataclass(slots=True)
class Answer:
    """Tokens, and the tier that wrote each."""

    token_ids: list[int] = field(default_factory=list)
    tiers: list[int] = field(default_factory=list)
    is_stopped: bool = False
    """Whether a stop token ended it."""
    error: pb.Error | None = None
    """Why it is not complete."""
    usage: pb.Usage = field(default_factory=pb.Usage)
    """What the mesh counted; empty in the reference's."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two answers differ."""

    position: int
    first: str
    second: str


def first_difference(first: Answer, second: Answer) -> Difference | None:
    """The first token, or tier that wrote it, or end, that is not the same in both."""
    columns = zip_longest(
        zip(first.token_ids, first.tiers, strict=False), zip(second.token_ids, second.tiers, strict=False)
    )
    for position, (one, other) in enumerate(columns):
        if one != other:
            return Difference(position, _place(first, one), _place(second, other))
    if first.is_stopped != second.is_stopped or first.error or second.error:
        length = len(first.token_ids)
        if first.is_stopped != second.is_stopped or (first.error is None) != (second.error is None):
            return Difference(length, _place(first, None), _place(second, None))
    return None


def _place(answer: Answer, written: tuple[int, int] | None) -> str:
    """What an answer has at a place."""
    if written is not None:
        token_id, tier = written
        return f"wrote {token_id} (tier {tier})"
    if answer.error is not None:
        return f"failed ({answer.error.message})"
    return "ended by a stop token" if answer.is_stopped else "ended by its length"

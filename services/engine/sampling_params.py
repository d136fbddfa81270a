"""How a request's tokens are drawn, and what sampling must know of a sequence."""

import math
from dataclasses import dataclass
from typing import Protocol

from ..errors import InvalidArgument
from .grammar import Grammar
from .matcher import Matcher

MAX_BIASES = 1024
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are drawn, and what ends it.

    In this order: repetition penalty, frequency and presence penalty, bias, grammar, `min_tokens`, temperature, and
    then `top_k`, `top_p` and `min_p`, each of which looks at the whole distribution.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means all."""
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    """A committed token of these ends the answer."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the answer holds."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of each token that the answer holds, once for each time."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens in prompt or answer, and multiplies the negative ones."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token id and what is added to its logit; each id once."""
    min_tokens: int = 0
    """Before the answer has so many tokens, no stop token is written."""
    num_logprobs: int | None = None
    """How many of the likeliest tokens are told beside the one written; None tells no log-probabilities."""
    grammar: Grammar | None = None
    """What the answer must be; None where it may be anything."""

    def __post_init__(self) -> None:
        """Refuse values out of range, naming the field."""
        _check("temperature", self.temperature, 0.0, 100.0)
        _check("top_p", self.top_p, 1e-6, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        if self.top_k < 0:
            raise InvalidArgument("top_k must be 0 (all) or more", field="top_k")
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check("repetition_penalty", self.repetition_penalty, 1e-6, 10.0)
        self._check_bias()
        if self.min_tokens < 0:
            raise InvalidArgument(f"min_tokens must be 0 or more, not {self.min_tokens}", field="min_tokens")
        if self.num_logprobs is not None:
            _check("logprobs", self.num_logprobs, 0, MAX_LOGPROBS)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < 1e-5

    @property
    def adjusts_logits(self) -> bool:
        """Whether tokens are chosen by other logits than the model's own."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.logit_bias
            or self.min_tokens
            or self.grammar is not None
        )

    @property
    def is_plain(self) -> bool:
        """Whether all that is wanted is the likeliest token."""
        return self.num_logprobs is None and self.takes_likeliest

    @property
    def takes_likeliest(self) -> bool:
        """Whether the token is the likeliest by the model's own logits."""
        return self.is_greedy and not self.adjusts_logits

    def require_known_ids(self, num_tokens: int) -> None:
        """Refuse token ids beyond a vocabulary of `num_tokens`.

        Raises:
            InvalidArgument: names the field.
        """
        named = {"stop_token_ids": self.stop_token_ids, "logit_bias": [token_id for token_id, _ in self.logit_bias]}
        for field, token_ids in named.items():
            if (largest := max(token_ids, default=0)) >= num_tokens:
                raise InvalidArgument(
                    f"{field} has token id {largest}, which is not in the vocabulary of {num_tokens}", field=field
                )

    def _check_bias(self) -> None:
        if len(self.logit_bias) > MAX_BIASES:
            raise InvalidArgument(
                f"logit_bias may hold {MAX_BIASES} token ids at most, not {len(self.logit_bias)}", field="logit_bias"
            )
        if len({token_id for token_id, _ in self.logit_bias}) < len(self.logit_bias):
            raise InvalidArgument("logit_bias names a token id twice", field="logit_bias")
        for token_id, bias in self.logit_bias:
            if token_id < 0:
                raise InvalidArgument(f"logit_bias has token id {token_id}: ids start at 0", field="logit_bias")
            _check("logit_bias", bias, -100.0, 100.0)


class Row(Protocol):
    """What sampling reads of a sequence whose next token is chosen; `engine.sequence.Sequence` has it."""

    @property
    def sampling(self) -> SamplingParams:
        """How it is chosen."""

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer so far."""

    @property
    def num_prompt_tokens(self) -> int:
        """How many of them are the prompt's."""

    @property
    def position(self) -> int:
        """Place in the answer of the token that comes next: 0 is the first after the prompt."""

    @property
    def matcher(self) -> Matcher | None:
        """What follows its answer through the grammar; None without one."""


def _check(field: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidArgument(f"{field} must be a number from {low:g} to {high:g}, not {value}", field=field)

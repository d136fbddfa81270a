"""What clients may send, as types. Null means absent, wherever it stands; unknown fields are ignored.

Those of `routing` are not: they are parameters of the policy.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ConfigDict, Field

from ...errors import InvalidArgument
from ..parameters import read_parameters
from ..request import GenerationParams
from .fields import Stops, Strict
from .logit_bias import parse_logit_bias
from .response_format import StructureFields
from .unsupported import refuse_unsupported

_MAX_CHOICES = 128
"""As in OpenAI's API."""


class StreamOptions(Strict):
    """How a stream tells what it has cost."""

    include_usage: bool = False
    """Whether a last chunk, without choices, has `usage`."""
    continuous_usage_stats: bool = False
    """Whether every chunk of a choice has its `usage` so far, too. As in vLLM, only with `include_usage`."""


class RoutingOptions(Strict):
    """Our own block: which policy, whether it is acted on, and what is told of each token.

    All else is the policy's parameters.
    """

    model_config = ConfigDict(extra="allow")

    policy: str = ""
    """The policy's name; empty for the mesh's default. `GET /v1/models` lists those that are served."""
    mode: str = ""
    """Whether the policy is acted on: `on`, `off`, `audit` or `canary`; empty for the mesh's default."""
    key: str = ""
    """With `canary`: requests of one key are all on or all off. Only a hash of it leaves the gateway."""
    report_tokens: bool = False
    """Whether to tell each token and the tier that wrote it."""
    report_scores: bool = False
    """Whether to tell the router's score at each token."""


class GenerationBody(StructureFields):
    """What chat and completions have in common."""

    model: str
    """Name of the served model."""
    n: int = 1
    """How many answers to each prompt, each a choice of its own; with `seed`, each next has the next seed."""
    max_tokens: int | None = None
    """Tokens of the answer at most; what does not fit the context window is cut off."""
    max_completion_tokens: int | None = None
    """The same; wins over `max_tokens`."""
    temperature: float | None = None
    """From 0, which is greedy, to 2; 1 by default."""
    top_p: float | None = None
    """Above 0, at most 1: the likeliest tokens that have so much probability together."""
    top_k: int | None = None
    """So many of the likeliest tokens; 0 and -1 for all."""
    min_p: float | None = None
    """From 0 to 1: tokens that have at least so much of the likeliest one's probability."""
    seed: int | None = None
    """Makes sampling repeatable: draws depend on seed and position alone."""
    presence_penalty: float = 0.0
    """From -2 to 2: taken off the logit of each token that the answer holds."""
    frequency_penalty: float = 0.0
    """From -2 to 2: taken off the logit of each token for each time that the answer holds it."""
    repetition_penalty: float | None = None
    """Above 0, at most 10: divides the positive logits of tokens in prompt or answer, and multiplies negative ones."""
    logit_bias: dict[str, Any] = Field(default_factory=dict)
    """Numbers from -100 to 100 by token id, added to the logits."""
    min_tokens: int = 0
    """Before so many tokens no stop token is written."""
    stop: Stops = Field(default_factory=list)
    """Texts that end the answer, up to four, and are not part of it."""
    stop_token_ids: list[int] = Field(default_factory=list)
    """Tokens that end the answer."""
    include_stop_str_in_output: bool = False
    """Whether the stop text that ended the answer is part of it after all."""
    ignore_eos: bool = False
    """Whether the models' own end-of-text tokens do not end the answer."""
    skip_special_tokens: bool = True
    """Whether special tokens have no text in the answer."""
    truncate_prompt_tokens: int | None = None
    """So many of the prompt's last tokens are kept; -1 for all that leave room for the answer."""
    stream: bool = False
    """Whether the reply comes as server-sent events while it is written."""
    stream_options: StreamOptions = StreamOptions()
    """How a stream tells what it has cost."""
    return_token_ids: bool = False
    """Whether choices have the `token_ids` of prompt and answer, as vLLM tells them."""
    user: str | None = None
    """As in OpenAI's API: who asks. Nothing is kept of it; it is the `key` of `routing` where that has none."""
    routing: RoutingOptions = RoutingOptions()
    """Which policy decides who writes, and what is told of it."""

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Check a body's fields and types.

        Raises:
            InvalidArgument: names the field.
        """
        refuse_unsupported(content)
        body = cls.of(content)
        if not 1 <= body.n <= _MAX_CHOICES:
            raise InvalidArgument(f"n must be from 1 to {_MAX_CHOICES}, not {body.n}", field="n")
        return body

    @property
    def echoes(self) -> bool:
        """Whether the prompt is shown before the answer."""
        return False

    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are to be told; None for no log-probabilities at all."""
        return None

    def params(self, request_id: str) -> GenerationParams:
        """The same in the gateway's own words; values are checked there."""
        for limit in (self.max_tokens, self.max_completion_tokens):
            if limit is not None and limit < (0 if self.echoes else 1):
                field = "max_tokens" if limit == self.max_tokens else "max_completion_tokens"
                raise InvalidArgument(f"{field} must be at least 1, not {limit}", field=field)
        return GenerationParams(
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=parse_logit_bias(self.logit_bias),
            min_tokens=self.min_tokens,
            num_logprobs=self.num_logprobs(),
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            grammar=self.grammar(),
            policy=self.routing.policy,
            parameters=read_parameters(self.routing.model_extra or {}),
            mode=self.routing.mode,
            key=self.routing.key or self.user or "",
            report_scores=self.routing.report_scores,
            request_id=request_id,
            echo=self.echoes,
            shows_special_tokens=not self.skip_special_tokens,
            shows_stop=self.include_stop_str_in_output,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
        )

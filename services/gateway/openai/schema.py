"""What clients may send, as types. Null means absent, wherever it stands; unknown fields are ignored.

Those of `routing` are not: they are parameters of the policy.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from ...engine.sampling_params import MAX_LOGPROBS
from ...errors import InvalidArgument
from ..gateway import Prompt
from ..parameters import read_parameters
from ..request import GenerationParams
from ..text.template import Message
from .logit_bias import parse_logit_bias
from .messages import to_conversation
from .unsupported import refuse_unsupported

_COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for `/v1/completions`; chat has none but the window."""


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class StreamOptions(_Strict):
    """How a stream ends."""

    include_usage: bool = False


class RoutingOptions(_Strict):
    """Our own block: which policy, whether it is acted on, and whether to tell who wrote each token.

    All else is the policy's parameters.
    """

    model_config = ConfigDict(extra="allow")

    policy: str = ""
    mode: str = ""
    key: str = ""
    report_tokens: bool = False


class GenerationBody(_Strict):
    """What chat and completions have in common."""

    model: str
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    """Wins over max_tokens."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: dict[str, Any] = {}
    min_tokens: int = 0
    stop: Annotated[list[str], BeforeValidator(_listed)] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str | None = None
    """As in OpenAI's API: who asks. Nothing is kept of it; it is the `key` of `routing` where that has none."""
    routing: RoutingOptions = RoutingOptions()

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Check a body's fields and types.

        Raises:
            InvalidArgument: names the field.
        """
        refuse_unsupported(content)
        try:
            return cls.model_validate(_without_nulls(content))
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(str(part) for part in problem["loc"])
            raise InvalidArgument(f"{field}: {problem['msg']}", field=field) from None

    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are to be told; None for no log-probabilities at all."""
        return None

    def params(self, request_id: str) -> GenerationParams:
        """The same in the gateway's own words; values are checked there."""
        for limit in (self.max_tokens, self.max_completion_tokens):
            if limit is not None and limit <= 0:
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
            policy=self.routing.policy,
            parameters=read_parameters(self.routing.model_extra or {}),
            mode=self.routing.mode,
            key=self.routing.key or self.user or "",
            request_id=request_id,
        )


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    logprobs: bool = False
    top_logprobs: int | None = None

    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are to be told; None for no log-probabilities at all.

        Raises:
            InvalidArgument: `top_logprobs` is out of range, or stands alone.
        """
        wanted = self.top_logprobs or 0
        if not 0 <= wanted <= MAX_LOGPROBS:
            raise InvalidArgument(f"top_logprobs must be from 0 to {MAX_LOGPROBS}, not {wanted}", field="top_logprobs")
        if wanted and not self.logprobs:
            raise InvalidArgument("top_logprobs needs logprobs: true", field="top_logprobs")
        return wanted if self.logprobs else None

    def conversation(self) -> list[Message]:
        """Messages as a chat template reads them, text parts joined.

        Raises:
            InvalidArgument: names the message and its field.
        """
        return to_conversation(self.messages)


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    max_tokens: int | None = _COMPLETION_MAX_TOKENS
    prompt: Any
    """A text, several texts, token ids, or several lists of token ids."""
    logprobs: int | None = None

    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are to be told; None for no log-probabilities at all."""
        return self.logprobs

    def prompts(self) -> list[Prompt]:
        """The prompts, one a choice.

        Raises:
            InvalidArgument: the shape is none of the four.
        """
        prompt = self.prompt
        if isinstance(prompt, str) or _is_ids(prompt):
            return [prompt]
        if isinstance(prompt, list) and prompt:
            if all(isinstance(item, str) for item in prompt) or all(_is_ids(item) for item in prompt):
                return list(prompt)
            if all(item == [] for item in prompt):
                raise InvalidArgument("the prompt is empty: it must have at least one token", field="prompt")
        raise InvalidArgument("prompt must be a text, token ids, or a list of either, and not empty", field="prompt")


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _without_nulls(content: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in content.items() if value is not None}
    for key in ("stream_options", "routing"):
        if isinstance(nested := kept.get(key), dict):
            kept[key] = {name: value for name, value in nested.items() if value is not None}
    return kept

"""What a caller asks for, as the message that the gateway takes. What is right in it, the gateway decides."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from ..errors import InvalidArgument
from ..mesh.wire import common_pb2
from ..mesh.wire import gateway_pb2 as pb

Request = pb.GenerateTextRequest
"""As `make_request` makes it."""

Message = Mapping[str, str]
"""`role` and `content`."""


_OF_REQUEST = frozenset({"prompt", "model", "max_tokens"})
_OF_ROUTING = frozenset({"policy", "mode", "key"})
_OF_SAMPLING = {"logprobs": "num_logprobs"} | {
    name: name
    for name in (
        "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "min_tokens", "ignore_eos",
    )
}  # fmt: skip
_GRAMMARS = {"guided_json": "json_schema", "guided_regex": "regex", "guided_choice": "choice"}
"""Names of the REST API to the wire's."""


class Params(TypedDict, total=False):
    """How to continue a prompt: the fields of the REST API, by the same names. Absent and None mean the default."""

    model: str | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    min_tokens: int | None
    logprobs: int | None
    """Log-probabilities of the tokens written, and of so many of the likeliest."""
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    guided_json: Mapping[str, Any] | str | None
    """The answer is JSON that fits this schema."""
    guided_regex: str | None
    guided_choice: Sequence[str] | None
    policy: str | None
    parameters: Mapping[str, float | Sequence[float]] | None
    """The policy's, by name."""
    mode: str | None
    key: str | None
    """Canary: requests of one key are routed all or none."""


def make_request(
    prompt: str | None = None,
    *,
    messages: Sequence[Message] | None = None,
    token_ids: Sequence[int] | None = None,
    **params: Unpack[Params],
) -> Request:
    """A request for the continuation of a text, of a conversation, or of tokens.

    Raises:
        InvalidArgument: not exactly one of the three is given, or a value cannot be sent at all; names the field.
    """
    if [prompt, messages, token_ids].count(None) != 2:
        raise InvalidArgument("give one of prompt, messages and token_ids", field="prompt")
    request = Request()
    if prompt is not None:
        _set(request, "prompt", prompt)
    if messages is not None:
        _set(request, "messages", messages)
    if token_ids is not None:
        _set(request, "token_ids", token_ids)
    for name, value in params.items():
        if value is not None:
            _set(request, name, value)
    return request


def make_tokenize_request(prompt: str | None, messages: Sequence[Message] | None) -> pb.TokenizeRequest:
    """A request for the tokens of a text or of a conversation.

    Raises:
        InvalidArgument: not exactly one of them is given, or it cannot be sent; names the field.
    """
    if (prompt is None) == (messages is None):
        raise InvalidArgument("give one of prompt and messages", field="prompt")
    request = make_request(prompt, messages=messages)
    return pb.TokenizeRequest(prompt=request.prompt) if messages is None else pb.TokenizeRequest(chat=request.chat)


def make_detokenize_request(token_ids: Sequence[int]) -> pb.DetokenizeRequest:
    """A request for the text of tokens.

    Raises:
        InvalidArgument: a token id cannot be sent.
    """
    return pb.DetokenizeRequest(token_ids=make_request(token_ids=token_ids).prompt_tokens.token_ids)


def _set(request: Request, name: str, value: Any) -> None:
    try:
        if name in _OF_REQUEST:
            setattr(request, name, value)
        elif name in _OF_ROUTING:
            setattr(request.routing, name, value)
        elif name in _OF_SAMPLING:
            setattr(request.sampling, _OF_SAMPLING[name], value)
        else:
            _set_many(request, name, value)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{name} cannot be sent: {error}", field=name) from error


def _set_many(request: Request, name: str, value: Any) -> None:
    """What is no single number or text, or is another one on the wire."""
    match name:
        case "messages":
            request.chat.CopyFrom(_chat_of(value))
            request.chat.SetInParent()
        case "token_ids":
            request.prompt_tokens.CopyFrom(pb.TokenIds(token_ids=value))
            request.prompt_tokens.SetInParent()
        case "stop":
            request.stop.extend([value] if isinstance(value, str) else value)
        case "stop_token_ids":
            request.sampling.stop_token_ids.extend(value)
        case "logit_bias":
            request.sampling.logit_bias.update(value)
        case "seed":
            # Callers may have a signed one, as over REST; the wire's is unsigned.
            request.sampling.seed = value % 2**64
        case "top_k":
            request.sampling.top_k = max(value, 0)
        case "guided_json" | "guided_regex" | "guided_choice":
            _set_grammar(request, name, value)
        case "parameters":
            for parameter, numbers in value.items():
                values = [numbers] if isinstance(numbers, int | float) else numbers
                request.routing.parameters[parameter].values.extend(values)
        case _:
            raise TypeError("there is no such field")


def _set_grammar(request: Request, name: str, value: Any) -> None:
    if request.sampling.HasField("grammar"):
        raise ValueError("an answer has one form: give one of guided_json, guided_regex and guided_choice")
    text = value if isinstance(value, str) else json.dumps(value)
    request.sampling.grammar.CopyFrom(common_pb2.Grammar(kind=_GRAMMARS[name], text=text))


def _chat_of(messages: Sequence[Message]) -> pb.ChatMessages:
    return pb.ChatMessages(messages=[pb.ChatMessage(**message) for message in messages])

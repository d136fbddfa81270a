"""Text to tokens and back over REST, in vLLM's shapes: `/tokenize`, `/detokenize` and `/tokenizer_info`."""

import asyncio
from collections.abc import Mapping
from typing import Any

from ...errors import InvalidArgument
from ..gateway import Gateway
from .chat_body import ChatFields
from .fields import MessageField, Strict
from .messages import to_conversation

_SHORT = 4096
"""Tokens that are turned to text in the event loop; more would hold up everyone's answers."""


class TokenizeBody(ChatFields):
    """`POST /tokenize`: a text or a conversation."""

    model: str | None = None
    """Name of the served model; may be left out."""
    prompt: str | None = None
    """A text. Either this or `messages`."""
    messages: list[MessageField] | None = None
    """A conversation, which the chat template turns into text."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds those of its own, such as a beginning of text: true for a text by default, and false
    for a conversation, whose template writes them."""
    return_token_strs: bool = False
    """Whether each token is told as the vocabulary spells it, too."""


class DetokenizeBody(Strict):
    """`POST /detokenize`."""

    model: str | None = None
    """Name of the served model; may be left out."""
    tokens: list[int]
    """Token ids. The text of special tokens is told, too."""


async def tokenize(gateway: Gateway, content: Mapping[str, Any]) -> dict[str, Any]:
    """`{"count", "max_model_len", "tokens", "token_strs"}`.

    Raises:
        InvalidArgument, ContextLengthExceeded: names the field.
    """
    body = TokenizeBody.of(content)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidArgument("give either prompt or messages", field="prompt")
    tokenizer, limit, add_special = gateway.tokenizer, gateway.count_limit, body.add_special_tokens
    if body.prompt is not None:
        text = limit.fit(body.prompt, "prompt")
        tokens = await tokenizer.encode_prompt(text, add_special_tokens=add_special is not False)
    else:
        messages = to_conversation(body.messages or [])
        options = body.template_options(body.tools)
        tokens = await tokenizer.encode_chat(messages, options, add_special_tokens=add_special is True, limit=limit)
    mesh, names = gateway.mesh, tokenizer.vocabulary.tokens
    return {
        "count": len(tokens),
        "max_model_len": None if mesh is None else mesh.max_context_tokens,
        "tokens": tokens,
        "token_strs": [names[token_id] for token_id in tokens] if body.return_token_strs else None,
    }


async def detokenize(gateway: Gateway, content: Mapping[str, Any]) -> dict[str, Any]:
    """`{"prompt"}`.

    Raises:
        InvalidArgument: an id is none of the vocabulary's; names the field.
    """
    tokens = DetokenizeBody.of(content).tokens
    num_token_ids = len(gateway.tokenizer.vocabulary)
    if tokens and not 0 <= min(tokens) <= max(tokens) < num_token_ids:
        raise InvalidArgument(f"tokens must be from 0 to {num_token_ids - 1}", field="tokens")
    decode = gateway.tokenizer.decode_all
    return {"prompt": decode(tokens) if len(tokens) <= _SHORT else await asyncio.to_thread(decode, tokens)}


def tokenizer_info(gateway: Gateway) -> dict[str, Any]:
    """What the tokenizer's own configuration says, with the chat template."""
    tokenizer = gateway.tokenizer
    return {**tokenizer.config, **tokenizer.vocabulary.special_tokens, "chat_template": tokenizer.template_source}

"""Text to tokens and back for clients, as requests would have it; no model works for it."""

import asyncio
from collections.abc import Sequence

from ..errors import InvalidArgument
from .security.prompt_size import TextLimit
from .text.template import Message
from .text.tokenizer import TextTokenizer

_SHORT = 4096
"""Tokens that are turned to text in the event loop; more would hold up everyone's answers."""


async def tokens_of_chat(tokenizer: TextTokenizer, messages: Sequence[Message], limit: TextLimit) -> list[int]:
    """Ids of a conversation through the chat template.

    Raises:
        InvalidArgument: there is no message or no template, or the template refuses the messages.
        ContextLengthExceeded: their text is longer than the limit.
    """
    if not messages:
        raise InvalidArgument("messages must hold at least one message", field="messages")
    return await tokenizer.encode_chat(messages, limit=limit)


async def text_of_tokens(tokenizer: TextTokenizer, token_ids: Sequence[int]) -> str:
    """Text of ids, special tokens left out.

    Raises:
        InvalidArgument: an id is none of the vocabulary's.
    """
    num_token_ids = len(tokenizer.vocabulary)
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < num_token_ids:
        raise InvalidArgument(f"token ids must be from 0 to {num_token_ids - 1}", field="token_ids")
    if len(token_ids) <= _SHORT:
        return tokenizer.decode(token_ids)
    return await asyncio.to_thread(tokenizer.decode, token_ids)

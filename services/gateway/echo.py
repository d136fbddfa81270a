"""A prompt as the beginning of its answer, for those who ask to have it back, and what the largest model thinks."""

from dataclasses import dataclass

from ..mesh.wire import common_pb2
from .text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Echo:
    """What is shown before an answer's first token."""

    text: str
    text_offsets: tuple[int, ...]
    """Characters of the text before each token of the prompt; empty where nobody asks for log-probabilities."""
    num_logprobs: int | None
    """How many of the likeliest tokens are told at each place; None tells no log-probabilities."""


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """An echo, with what was found out about it."""

    text: str
    token_ids: list[int]
    logprobs: list[common_pb2.TokenLogprobs] | None
    """Of each token but the first, before which there is nothing; None where nobody asks."""
    text_offsets: tuple[int, ...]


async def echo_of(tokenizer: TextTokenizer, prompt: str | None, token_ids: list[int], num_logprobs: int | None) -> Echo:
    """The echo of a prompt: its text as it was given, or that of its tokens."""
    if num_logprobs is None:
        return Echo(prompt if prompt is not None else tokenizer.decode(token_ids), (), None)
    decoded, offsets = await tokenizer.read_back(token_ids)
    text = decoded if prompt is None else prompt
    return Echo(text, tuple(min(offset, len(text)) for offset in offsets), num_logprobs)

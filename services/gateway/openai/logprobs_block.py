"""The `logprobs` block of a choice, in the forms of chat and of completions.

An entry travels with its token's piece, whenever the token's text is shown: at once, later because a stop
string or a character is not complete, or never, as that of a stop token. So joined entries are one for each
token that counts.
"""

import math
from collections.abc import Sequence
from typing import Any

from ...mesh.wire import common_pb2
from ..generation import Piece
from ..text.token_text import TokenTexts

_NO_PROBABILITY = -9999.0
"""What OpenAI's API says for a probability of 0, whose logarithm JSON cannot carry."""


def chat_logprobs(pieces: Sequence[Piece], texts: TokenTexts) -> dict[str, Any]:
    """`{"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}`."""
    return {
        "content": [
            _chat_token(token_id, entry.logprob, texts)
            | {
                "top_logprobs": [
                    _chat_token(top_id, logprob, texts)
                    for top_id, logprob in zip(entry.top_token_ids, entry.top_logprobs, strict=True)
                ]
            }
            for piece in pieces
            for token_id, entry in zip(piece.token_ids, piece.logprobs, strict=True)
        ],
        "refusal": None,
    }


def completion_logprobs(pieces: Sequence[Piece], texts: TokenTexts) -> dict[str, Any]:
    """`{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`, parallel lists.

    A prompt that is echoed comes first; nothing precedes its first token, whose entries are null.
    """
    token_ids = [token_id for piece in pieces for token_id in _token_ids(piece)]
    entries = [entry for piece in pieces for entry in _entries(piece)]
    return {
        "tokens": [texts[token_id].text for token_id in token_ids],
        "token_logprobs": [None if entry is None else _finite(entry.logprob) for entry in entries],
        "top_logprobs": [
            None if entry is None else _top_by_text(token_id, entry, texts)
            for token_id, entry in zip(token_ids, entries, strict=True)
        ],
        "text_offset": [offset for piece in pieces for offset in _offsets(piece)],
    }


def _token_ids(piece: Piece) -> list[int]:
    return piece.token_ids if piece.prompt is None else piece.prompt.token_ids


def _entries(piece: Piece) -> list[common_pb2.TokenLogprobs | None]:
    return [*piece.logprobs] if piece.prompt is None else [None, *(piece.prompt.logprobs or ())]


def _offsets(piece: Piece) -> Sequence[int]:
    return piece.text_offsets if piece.prompt is None else piece.prompt.text_offsets


def _chat_token(token_id: int, logprob: float, texts: TokenTexts) -> dict[str, Any]:
    token = texts[token_id]
    return {"token": token.text, "logprob": _finite(logprob), "bytes": list(token.data)}


def _top_by_text(token_id: int, entry: common_pb2.TokenLogprobs, texts: TokenTexts) -> dict[str, float]:
    """The likeliest tokens and the one written; of those that look the same, the likeliest."""
    found: dict[str, float] = {}
    for top_id, logprob in zip(entry.top_token_ids, entry.top_logprobs, strict=True):
        found.setdefault(texts[top_id].text, _finite(logprob))
    found.setdefault(texts[token_id].text, _finite(entry.logprob))
    return found


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _NO_PROBABILITY

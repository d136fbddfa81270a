"""The two kinds of reply, chat and completion, whole and in chunks.

A chunk is put together from text made once a reply, since it is made once a token.
"""

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from ..generation import Generation, Piece
from ..text.token_text import TokenTexts
from .logprobs_block import chat_logprobs, completion_logprobs
from .routing_block import routing_block, usage_block

DONE = b"data: [DONE]\n\n"


class Reply(ABC):
    """One reply's identity and the form of its parts."""

    id_prefix: ClassVar[str]
    object_name: ClassVar[str]
    chunk_name: ClassVar[str]

    def __init__(self, model: str, token_texts: TokenTexts, *, report_tokens: bool) -> None:
        self.id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self._model = model
        self._created = int(time.time())
        self._token_texts = token_texts
        self._report_tokens = report_tokens
        head = _json(self._head(self.chunk_name))
        self._chunk_head = f'data: {head[:-1]},"choices":['

    def whole(self, generations: Sequence[Generation], pieces: Sequence[Sequence[Piece]]) -> dict[str, Any]:
        """The body of a reply that is not streamed; `pieces` by choice."""
        choices = [
            {
                "index": index,
                **self._whole_text("".join(piece.text for piece in own)),
                "logprobs": self._logprobs(own) if generation.plan.has_logprobs else None,
                "finish_reason": generation.finish_reason,
            }
            for index, (generation, own) in enumerate(zip(generations, pieces, strict=True))
        ]
        routing = routing_block(generations)
        if len(choices) == 1:
            routing |= self._tokens(pieces[0])
        else:
            for choice, generation, own in zip(choices, generations, pieces, strict=True):
                choice["routing"] = routing_block([generation]) | self._tokens(own)
        return self._head(self.object_name) | {
            "choices": choices,
            "usage": usage_block(generations),
            "routing": routing,
        }

    def first_chunk(self, index: int) -> bytes:
        """What opens a choice, if anything does."""
        return b""

    def chunk(self, index: int, piece: Piece) -> bytes:
        """What one piece adds; nothing where it adds nothing that a client would see."""
        if not (piece.text or piece.logprobs or (self._report_tokens and piece.token_ids)):
            return b""
        text = self._chunk_text(json.dumps(piece.text, ensure_ascii=False))
        logprobs = _json(self._logprobs([piece])) if piece.logprobs else "null"
        tail = f',"routing":{_json(self._tokens([piece]))}' if self._report_tokens else ""
        choice = f'{{"index":{index},{text},"logprobs":{logprobs},"finish_reason":null}}]{tail}}}\n\n'
        return f"{self._chunk_head}{choice}".encode()

    def finish_chunk(self, index: int, generation: Generation) -> bytes:
        """What closes a choice, with its account."""
        choice = f'{{"index":{index},{self._no_text()},"logprobs":null,"finish_reason":"{generation.finish_reason}"}}]'
        return f'{self._chunk_head}{choice},"routing":{_json(routing_block([generation]))}}}\n\n'.encode()

    def usage_chunk(self, generations: Sequence[Generation]) -> bytes:
        """The last chunk, for those who asked for it."""
        return f'{self._chunk_head}],"usage":{_json(usage_block(generations))}}}\n\n'.encode()

    def _head(self, object_name: str) -> dict[str, Any]:
        return {"id": self.id, "object": object_name, "created": self._created, "model": self._model}

    def _tokens(self, pieces: Sequence[Piece]) -> dict[str, list[int]]:
        if not self._report_tokens:
            return {}
        return {
            "token_ids": [token_id for piece in pieces for token_id in piece.token_ids],
            "tiers": [tier for piece in pieces for tier in piece.tiers],
        }

    @abstractmethod
    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]: ...

    @abstractmethod
    def _whole_text(self, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def _chunk_text(self, quoted: str) -> str: ...

    @abstractmethod
    def _no_text(self) -> str: ...


class ChatReply(Reply):
    """`/v1/chat/completions`."""

    id_prefix, object_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first_chunk(self, index: int) -> bytes:
        """The role, before any text."""
        choice = f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}'
        return f"{self._chunk_head}{choice}]}}\n\n".encode()

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return chat_logprobs(pieces, self._token_texts)

    def _whole_text(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _chunk_text(self, quoted: str) -> str:
        return f'"delta":{{"content":{quoted}}}'

    def _no_text(self) -> str:
        return '"delta":{}'


class CompletionReply(Reply):
    """`/v1/completions`."""

    id_prefix, object_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return completion_logprobs(pieces, self._token_texts)

    def _whole_text(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _chunk_text(self, quoted: str) -> str:
        return f'"text":{quoted}'

    def _no_text(self) -> str:
        return '"text":""'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

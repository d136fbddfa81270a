"""The two kinds of reply, chat and completion, whole and in chunks.

A chunk is put together from text made once a reply, since it is made once a token.
"""

import json
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
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

    def __init__(
        self,
        model: str,
        token_texts: TokenTexts,
        *,
        report_tokens: bool,
        report_scores: bool = False,
        return_token_ids: bool = False,
        continuous_usage: bool = False,
    ) -> None:
        self.id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self._model = model
        self._created = int(time.time())
        self._token_texts = token_texts
        self._report_tokens, self._report_scores = report_tokens, report_scores
        self._return_token_ids, self._continuous_usage = return_token_ids, continuous_usage
        self._num_told: Counter[int] = Counter()
        """Tokens of the answer in the chunks so far, by choice."""
        head = to_json(self._head(self.chunk_name))
        self._chunk_head = f'data: {head[:-1]},"choices":['

    def whole(self, generations: Sequence[Generation], pieces: Sequence[Sequence[Piece]]) -> dict[str, Any]:
        """The body of a reply that is not streamed; `pieces` by choice."""
        choices = [
            {
                "index": index,
                **self._whole_text(index, "".join(map(_text, own))),
                "logprobs": self._logprobs(own) if generation.plan.has_logprobs else None,
                "finish_reason": self._finish_reason(index, generation),
                **self._whole_ids(generation, own),
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

    def first_chunk(self, index: int, generation: Generation) -> bytes:
        """What opens a choice, if anything does."""
        return b""

    def chunk(self, index: int, piece: Piece, generation: Generation) -> bytes:
        """What one piece adds; nothing where it adds nothing that a client would see."""
        self._num_told[index] += len(piece.tiers)
        tokens = self._tokens([piece])
        text = self._chunk_text(index, _text(piece))
        has_logprobs = bool(piece.logprobs) or (piece.prompt is not None and piece.prompt.logprobs is not None)
        if not (text or has_logprobs or ((tokens or self._return_token_ids) and piece.token_ids)):
            return b""
        logprobs = to_json(self._logprobs([piece])) if has_logprobs else "null"
        ids = f',"token_ids":{to_json(piece.token_ids)}' if self._return_token_ids and piece.prompt is None else ""
        tail = f',"routing":{to_json(tokens)}' if tokens else ""
        choice = f'{{"index":{index},{text or self._no_text()},"logprobs":{logprobs},"finish_reason":null{ids}}}]{tail}'
        return self._finished(choice, index, generation)

    def finish_chunk(self, index: int, generation: Generation) -> bytes:
        """What closes a choice, with its account."""
        reason = self._finish_reason(index, generation)
        choice = f'{{"index":{index},{self._no_text()},"logprobs":null,"finish_reason":"{reason}"}}]'
        return self._finished(f'{choice},"routing":{to_json(routing_block([generation]))}', index, generation)

    def usage_chunk(self, generations: Sequence[Generation]) -> bytes:
        """The last chunk, for those who asked for it."""
        return f'{self._chunk_head}],"usage":{to_json(usage_block(generations))}}}\n\n'.encode()

    def _finished(self, choice: str, index: int, generation: Generation) -> bytes:
        """A chunk of a choice, with what it has cost so far for those who ask."""
        usage = ""
        if self._continuous_usage:
            num_prompt, num_told = generation.plan.num_prompt_tokens, self._num_told[index]
            counts = {"prompt_tokens": num_prompt, "completion_tokens": num_told, "total_tokens": num_prompt + num_told}
            usage = f',"usage":{to_json(counts)}'
        return f"{self._chunk_head}{choice}{usage}}}\n\n".encode()

    def _finish_reason(self, index: int, generation: Generation) -> str:
        return str(generation.finish_reason)

    def _head(self, object_name: str) -> dict[str, Any]:
        return {"id": self.id, "object": object_name, "created": self._created, "model": self._model}

    def _tokens(self, pieces: Sequence[Piece]) -> dict[str, list[Any]]:
        tokens: dict[str, list[Any]] = {}
        if self._report_tokens:
            tokens["token_ids"] = [token_id for piece in pieces for token_id in piece.token_ids]
            tokens["tiers"] = [tier for piece in pieces for tier in piece.tiers]
        if self._report_scores:
            scores = [score for piece in pieces for score in piece.scores]
            # What the wire rounds to 32 bits is not shown with more digits than it has.
            tokens["scores"] = [float(f"{score:.7g}") if math.isfinite(score) else None for score in scores]
        return tokens

    @abstractmethod
    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]: ...

    @abstractmethod
    def _whole_ids(self, generation: Generation, pieces: Sequence[Piece]) -> dict[str, Any]: ...

    @abstractmethod
    def _whole_text(self, index: int, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def _chunk_text(self, index: int, text: str) -> str:
        """A text as a part of a choice's JSON; empty where it adds nothing that is certain."""

    @abstractmethod
    def _no_text(self) -> str: ...


class ChatReply(Reply):
    """`/v1/chat/completions`."""

    id_prefix, object_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first_chunk(self, index: int, generation: Generation) -> bytes:
        """The role, before any text."""
        choice = f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}'
        ids = f',"prompt_token_ids":{to_json(_prompt_ids(generation))}' if self._return_token_ids else ""
        return self._finished(f"{choice}]{ids}", index, generation)

    def whole(self, generations: Sequence[Generation], pieces: Sequence[Sequence[Piece]]) -> dict[str, Any]:
        """See `Reply.whole`."""
        body = super().whole(generations, pieces)
        return body | {"prompt_token_ids": _prompt_ids(generations[0])} if self._return_token_ids else body

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return chat_logprobs(pieces, self._token_texts)

    def _whole_ids(self, generation: Generation, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {"token_ids": _token_ids(pieces)} if self._return_token_ids else {}

    def _whole_text(self, index: int, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _chunk_text(self, index: int, text: str) -> str:
        return f'"delta":{{"content":{to_json(text)}}}' if text else ""

    def _no_text(self) -> str:
        return '"delta":{}'


class CompletionReply(Reply):
    """`/v1/completions`."""

    id_prefix, object_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return completion_logprobs(pieces, self._token_texts)

    def first_chunk(self, index: int, generation: Generation) -> bytes:
        """The prompt's tokens for those who ask for them."""
        if not self._return_token_ids:
            return b""
        ids = f'"token_ids":[],"prompt_token_ids":{to_json(_prompt_ids(generation))}'
        choice = f'{{"index":{index},{self._no_text()},"logprobs":null,"finish_reason":null,{ids}}}]'
        return self._finished(choice, index, generation)

    def _whole_ids(self, generation: Generation, pieces: Sequence[Piece]) -> dict[str, Any]:
        if not self._return_token_ids:
            return {}
        return {"token_ids": _token_ids(pieces), "prompt_token_ids": _prompt_ids(generation)}

    def _whole_text(self, index: int, text: str) -> dict[str, Any]:
        return {"text": text}

    def _chunk_text(self, index: int, text: str) -> str:
        return f'"text":{to_json(text)}' if text else ""

    def _no_text(self) -> str:
        return '"text":""'


def _text(piece: Piece) -> str:
    return piece.text if piece.prompt is None else piece.prompt.text


def _token_ids(pieces: Sequence[Piece]) -> list[int]:
    return [token_id for piece in pieces for token_id in piece.token_ids]


def _prompt_ids(generation: Generation) -> list[int]:
    return list(generation.plan.open_request.prompt_token_ids)


def to_json(value: object) -> str:
    """A part of a chunk."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

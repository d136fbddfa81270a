"""A chat's reply where the model may call functions: text, and calls, each whole in one chunk."""

from collections.abc import Sequence
from typing import Any

from ..generation import Generation
from .reply import ChatReply, to_json
from .tool_calls import Part, ToolCall, ToolCallReader
from .tools import ToolUse


class ToolReply(ChatReply):
    """`/v1/chat/completions` with `tools`."""

    def __init__(self, *arguments: Any, use: ToolUse, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._use = use
        self._readers: dict[int, ToolCallReader] = {}

    def finish_chunk(self, index: int, generation: Generation) -> bytes:
        """What was not certain before, and what closes a choice."""
        delta = self._delta(index, self._reader(index).finish())
        if not delta:
            return super().finish_chunk(index, generation)
        choice = f'{{"index":{index},{delta},"logprobs":null,"finish_reason":null}}]'
        return self._finished(choice, index, generation) + super().finish_chunk(index, generation)

    def _reader(self, index: int) -> ToolCallReader:
        if index not in self._readers:
            use = self._use
            reader = ToolCallReader(use.names, is_forced=use.is_forced, is_parallel=use.is_parallel)
            self._readers[index] = reader
        return self._readers[index]

    def _whole_text(self, index: int, text: str) -> dict[str, Any]:
        reader = self._reader(index)
        parts = reader.push(text) + reader.finish()
        content = "".join(part for part in parts if isinstance(part, str))
        calls = [_call(part) for part in parts if isinstance(part, ToolCall)]
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        return {"message": message | {"content": content or None, "tool_calls": calls} if calls else message}

    def _chunk_text(self, index: int, text: str) -> str:
        return self._delta(index, self._reader(index).push(text))

    def _delta(self, index: int, parts: Sequence[Part]) -> str:
        content = "".join(part for part in parts if isinstance(part, str))
        calls = [part for part in parts if isinstance(part, ToolCall)]
        first = self._reader(index).num_calls - len(calls)
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            delta["tool_calls"] = [{"index": first + place, **_call(call)} for place, call in enumerate(calls)]
        return f'"delta":{to_json(delta)}' if delta else ""

    def _finish_reason(self, index: int, generation: Generation) -> str:
        """As in OpenAI's API: `tool_calls`, but for the one function that the client named itself."""
        has_called = self._reader(index).num_calls > 0 and not self._use.named
        return "tool_calls" if has_called and generation.finish_reason == "stop" else str(generation.finish_reason)


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}

"""Calls of functions in a text that comes in pieces: Hermes' form, which Qwen's models write, too.

A call is `<tool_call>{"name": …, "arguments": {…}}</tool_call>`; an answer that was forced to be calls is their JSON
alone. What only looks like a call, or names no function that there is, stays text.
"""

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as clients see it."""

    name: str
    arguments: str
    """JSON."""
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


Part = str | ToolCall
"""Text, or a call."""


class ToolCallReader:
    """Tells calls from text. White space around calls belongs to neither."""

    def __init__(self, names: Collection[str], *, is_forced: bool = False, is_parallel: bool = True) -> None:
        """`names`: of the functions that may be called; of several calls only the first counts unless parallel."""
        self._names = names
        self._is_forced = is_forced
        self._is_parallel = is_parallel
        self._held = ""
        """Text of which it is not certain what it is."""
        self._space = ""
        """White space that is text only if text follows, or no call was there."""
        self._is_inside = False
        self.num_calls = 0
        """Calls so far."""

    def push(self, piece: str) -> list[Part]:
        """What became certain with this text."""
        self._held += piece
        parts: list[Part] = []
        while not self._is_forced and (self._read_call(parts) if self._is_inside else self._read_text(parts)):
            pass
        return parts

    def finish(self) -> list[Part]:
        """What is left when no text will follow; a call that was not closed counts where it is complete."""
        held, self._held = self._held, ""
        calls = self._parse(held) if self._is_forced or self._is_inside else None
        parts: list[Part] = []
        if calls is not None:
            self._add_calls(parts, calls)
        else:
            self._add_text(parts, (_OPEN if self._is_inside else "") + held)
        if self._space and not self.num_calls:
            parts.append(self._space)
        return parts

    def _read_text(self, parts: list[Part]) -> bool:
        """Take text up to a call, or to what may become one. Whether a call begins."""
        start = self._held.find(_OPEN)
        if start >= 0:
            self._add_text(parts, self._held[:start])
            self._held, self._is_inside = self._held[start + len(_OPEN) :], True
            return True
        shown = len(self._held) - _overlap(self._held)
        self._add_text(parts, self._held[:shown])
        self._held = self._held[shown:]
        return False

    def _read_call(self, parts: list[Part]) -> bool:
        """Take a call that is closed. Whether there was one; a mark inside of a JSON text closes nothing."""
        end = self._held.find(_CLOSE)
        while end >= 0:
            body = self._held[:end]
            if not _is_in_text(body):
                calls = self._parse(body)
                self._held, self._is_inside = self._held[end + len(_CLOSE) :], False
                if calls is None:
                    self._add_text(parts, f"{_OPEN}{body}{_CLOSE}")
                else:
                    self._add_calls(parts, calls)
                return True
            end = self._held.find(_CLOSE, end + 1)
        return False

    def _add_text(self, parts: list[Part], text: str) -> None:
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            parts.append(shown)

    def _add_calls(self, parts: list[Part], calls: list[ToolCall]) -> None:
        self._space = ""
        wanted = calls if self._is_parallel else calls[: max(0, 1 - self.num_calls)]
        self.num_calls += len(wanted)
        parts += wanted

    def _parse(self, text: str) -> list[ToolCall] | None:
        """The calls of a JSON text; None where it is none."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            return None
        found = content if isinstance(content, list) else [content]
        calls = [call for item in found if (call := self._call(item)) is not None]
        return calls if calls and len(calls) == len(found) else None

    def _call(self, content: object) -> ToolCall | None:
        name = content.get("name") if isinstance(content, dict) else None
        if not isinstance(content, dict) or not isinstance(name, str) or name not in self._names:
            return None
        arguments = content.get("arguments", content.get("parameters", {}))
        if isinstance(arguments, str):
            return ToolCall(name, arguments)
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str) -> int:
    """Length of the longest end of the text with which a call's mark begins."""
    return next((size for size in range(min(len(_OPEN) - 1, len(text)), 0, -1) if text.endswith(_OPEN[:size])), 0)


def _is_in_text(json_text: str) -> bool:
    """Whether a beginning of JSON ends inside of a quoted text."""
    is_inside = is_escaped = False
    for letter in json_text:
        if is_escaped:
            is_escaped = False
        elif letter == "\\":
            is_escaped = is_inside
        elif letter == '"':
            is_inside = not is_inside
    return is_inside

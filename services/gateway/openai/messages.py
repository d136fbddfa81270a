"""Chat messages as clients send them, turned into what a chat template reads."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InvalidArgument
from ..text.template import Message

_UNSUPPORTED = ("function_call", "audio")


def to_conversation(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages with their text parts joined. Roles are the template's business.

    Raises:
        InvalidArgument: names the message and its field.
    """
    if not messages:
        raise InvalidArgument("messages must hold at least one message", field="messages")
    return [_message(message, f"messages.{index}") for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], field: str) -> Message:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise InvalidArgument(f"{field}.role must be a text", field=f"{field}.role")
    for unsupported in _UNSUPPORTED:
        if message.get(unsupported):
            raise InvalidArgument(f"{unsupported} is not supported here", field=f"{field}.{unsupported}")
    calls = _calls(message.get("tool_calls"), f"{field}.tool_calls")
    if content is None and calls:
        content = ""
    if isinstance(content, list):
        content = "".join(_text_part(part, f"{field}.content.{index}") for index, part in enumerate(content))
    if not isinstance(content, str):
        raise InvalidArgument(f"{field}.content must be a text or text parts", field=f"{field}.content")
    named = {key: message[key] for key in ("name", "tool_call_id") if isinstance(message.get(key), str)}
    return {"role": role, "content": content, **named, **({"tool_calls": calls} if calls else {})}


def _calls(content: object, field: str) -> list[dict[str, Any]]:
    """Earlier calls of functions, their arguments as the objects that templates expect."""
    if content is None or content == []:
        return []
    if not isinstance(content, list):
        raise InvalidArgument(f"{field} must be a list", field=field)
    return [_call(item, f"{field}.{index}") for index, item in enumerate(content)]


def _call(content: object, field: str) -> dict[str, Any]:
    function = content.get("function") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidArgument(f"{field} must be a call of a function, with its name", field=field)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise InvalidArgument(
                f"{field}.function.arguments must be JSON", field=f"{field}.function.arguments"
            ) from None
    return {
        "id": str(content.get("id", "")),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _text_part(part: object, field: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind != "text" or not isinstance(part.get("text"), str):
        shown = kind if isinstance(kind, str) else "another kind"
        raise InvalidArgument(f"{field}: only parts of type text are supported, not {shown!r}", field=field)
    text: str = part["text"]
    return text

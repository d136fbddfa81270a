"""Chat messages as clients send them, turned into what a chat template reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InvalidArgument
from ..text.template import Message

_UNSUPPORTED = ("tool_calls", "function_call", "audio")


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
    if isinstance(content, list):
        content = "".join(_text_part(part, f"{field}.content.{index}") for index, part in enumerate(content))
    if not isinstance(content, str):
        raise InvalidArgument(f"{field}.content must be a text or text parts", field=f"{field}.content")
    named = {"name": message["name"]} if isinstance(message.get("name"), str) else {}
    return {"role": role, "content": content, **named}


def _text_part(part: object, field: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind != "text" or not isinstance(part.get("text"), str):
        shown = kind if isinstance(kind, str) else "another kind"
        raise InvalidArgument(f"{field}: only parts of type text are supported, not {shown!r}", field=field)
    text: str = part["text"]
    return text

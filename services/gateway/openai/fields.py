"""What the bodies of several endpoints have in common: strict types, and null for what is absent."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema

from ...errors import InvalidArgument


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


_TEXT = {"type": "string"}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}

Stops = Annotated[
    list[str],
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 4}]}),
]
"""One text, or several."""

PromptField = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                _IDS,
                {"type": "array", "items": _TEXT, "minItems": 1},
                {"type": "array", "items": _IDS, "minItems": 1},
            ]
        }
    ),
]
"""A text, several texts, token ids, or several lists of token ids."""

MessageField = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "required": ["role"],
            "properties": {
                "role": _TEXT,
                "name": _TEXT,
                "content": {
                    "anyOf": [
                        _TEXT,
                        {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["type", "text"],
                                "properties": {"type": {"const": "text"}, "text": _TEXT},
                            },
                        },
                        {"type": "null"},
                    ]
                },
                "tool_calls": {"type": "array", "items": {"type": "object"}},
                "tool_call_id": _TEXT,
            },
        }
    ),
]
"""A message of a conversation: its role, and its text or text parts."""


class Strict(BaseModel):
    """A body, or a part of one. Unknown fields are ignored."""

    model_config = ConfigDict(
        strict=True, extra="ignore", allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Check a body's fields and types.

        Raises:
            InvalidArgument: names the field.
        """
        try:
            return cls.model_validate(_without_nulls(content))
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(str(part) for part in problem["loc"])
            raise InvalidArgument(f"{field}: {problem['msg']}", field=field) from None


def _without_nulls(content: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in content.items() if value is not None}
    for key in ("stream_options", "routing"):
        if isinstance(nested := kept.get(key), dict):
            kept[key] = {name: value for name, value in nested.items() if value is not None}
    return kept

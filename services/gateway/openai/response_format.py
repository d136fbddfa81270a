"""`response_format` as OpenAI has it, and the fields that vLLM's clients send for the same."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import WithJsonSchema

from ...errors import InvalidArgument
from ..grammar import Grammar
from .fields import Strict

_FORMATS = ("text", "json_object", "json_schema")
_STRUCTURES = {
    "json": "a JSON schema, as an object or as its text",
    "json_object": "true or false",
    "regex": "a regular expression",
    "choice": "a list of texts, at least one",
}
_NOT_SERVED = ("grammar", "structural_tag")

_ResponseFormat = Annotated[
    dict[str, Any] | None,
    WithJsonSchema(
        {
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": {"enum": list(_FORMATS)},
                "json_schema": {
                    "type": "object",
                    "required": ["schema"],
                    "properties": {
                        "name": {"type": "string"},
                        "description": {"type": "string"},
                        "schema": {"type": "object"},
                        "strict": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                    },
                },
            },
        }
    ),
]


class StructureFields(Strict):
    """What the answer must be."""

    response_format: _ResponseFormat = None
    """`text`, `json_object`, or `json_schema` with a schema; strict ones are refused where not all can be enforced."""
    structured_outputs: dict[str, Any] | None = None
    """As vLLM has it: one of `json`, `json_object`, `regex` and `choice`."""
    guided_json: Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]})] = None
    """A JSON schema, as an object or as its text."""
    guided_regex: str | None = None
    """A regular expression that the whole answer fits."""
    guided_choice: list[str] | None = None
    """Texts of which the answer is one."""

    def grammar(self) -> Grammar | None:
        """The grammar of the answer; None where it may be anything.

        Raises:
            InvalidArgument: a field is wrong, or there are two that do not go together; names the field.
        """
        found = [
            *_from_response_format(self.response_format),
            *_from_structured_outputs(self.structured_outputs or {}),
            *(
                _structure(name, value, f"guided_{name}")
                for name in ("json", "regex", "choice")
                if (value := getattr(self, f"guided_{name}")) is not None
            ),
        ]
        if len(found) > 1:
            first, second = found[0].field, found[1].field
            raise InvalidArgument(f"{first} and {second} both say what the answer must be: leave one out", field=second)
        return found[0] if found else None


def _from_response_format(content: Mapping[str, Any] | None) -> Iterator[Grammar]:
    if content is None:
        return
    match content.get("type"):
        case "text":
            pass
        case "json_object":
            yield Grammar.json_object(field="response_format")
        case "json_schema":
            yield _from_json_schema(content.get("json_schema"))
        case _:
            raise InvalidArgument(
                f"response_format.type must be one of {', '.join(_FORMATS)}", field="response_format.type"
            )


def _from_json_schema(content: object) -> Grammar:
    field = "response_format.json_schema"
    if not isinstance(content, dict):
        raise InvalidArgument(f"{field} must be an object that has the schema", field=field)
    strict = content.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidArgument(f"{field}.strict must be true or false", field=f"{field}.strict")
    if not isinstance(content.get("schema"), dict):
        raise InvalidArgument(f"{field}.schema must be a JSON schema, an object", field=f"{field}.schema")
    return Grammar.json_schema(content["schema"], strict=bool(strict), field=f"{field}.schema")


def _from_structured_outputs(content: Mapping[str, Any]) -> Iterator[Grammar]:
    for name in _NOT_SERVED:
        if content.get(name) is not None:
            field = f"structured_outputs.{name}"
            raise InvalidArgument(f"{field} is not supported here; there are {', '.join(_STRUCTURES)}", field=field)
    for name in _STRUCTURES:
        if content.get(name) not in (None, False):
            yield _structure(name, content[name], f"structured_outputs.{name}")


def _structure(name: str, value: object, field: str) -> Grammar:
    match name, value:
        case "json", dict():
            return Grammar.json_schema(value, strict=False, field=field)
        case "json", str():
            return Grammar("json_schema_lenient", value, field)
        case "json_object", True:
            return Grammar.json_object(field=field)
        case "regex", str():
            return Grammar.regex(value, field=field)
        case "choice", list():
            choices = [choice for choice in value if isinstance(choice, str)]
            if 0 < len(choices) == len(value):
                return Grammar.choice(choices, field=field)
    raise InvalidArgument(f"{field} must be {_STRUCTURES[name]}", field=field)

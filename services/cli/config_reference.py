"""Every key of the configuration as a page of Markdown (docs/configuration.md), read from the classes that check it."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..config import ALWAYS_THERE, MeshSettings

_HEAD = """\
# Configuration: every key

Made by `allroads config --reference > docs/configuration.md` from the classes that check a configuration; do not edit.
A file names what differs from the defaults; a variable of the environment wins over the file, an option of a command
over both. `allroads config` prints what results. Unknown keys and values out of range are refused by name. A variable
for a list or a mapping is JSON. Which keys matter first: [README](../README.md#configuration).
"""
_WORDS = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "text"}
_NAME = "NAME"
"""Stands for the name that an operator chooses."""
_EMBEDDED_SCORERS = "the embedded ones, with the embedded small model and router"


@dataclass(frozen=True, slots=True)
class _Section:
    """Keys that stand together."""

    key: str
    settings: type[BaseModel]
    summary: str


def config_reference() -> str:
    """The page: for each part of a mesh its keys, with variable, type, range, default and meaning."""
    text = inspect.getdoc(MeshSettings) or ""
    sections = _sections(_Section("", MeshSettings, text))
    return "\n".join([_HEAD, *("\n".join(_lines(section)) for section in sections)])


def _sections(section: _Section) -> Iterator[_Section]:
    """A part, and below it the parts that it is made of."""
    yield section
    docs = field_docs(section.settings)
    for name, field in section.settings.model_fields.items():
        if (nested := _nested(field.annotation)) is not None:
            settings, is_mapping = nested
            key = f"{section.key}.{name}".removeprefix(".") + (f".{_NAME}" if is_mapping else "")
            summary = " ".join(filter(None, (_one_line(inspect.getdoc(settings)), docs.get(name))))
            yield from _sections(_Section(key, settings, summary))


def _lines(section: _Section) -> Iterator[str]:
    yield f"## {f'`{section.key}`' if section.key else 'The mesh'}\n"
    yield f"{_one_line(section.summary)}\n"
    yield "| key and variable | value | default | |"
    yield "|---|---|---|---|"
    docs = field_docs(section.settings)
    schemas = section.settings.model_json_schema()["properties"]
    for name, field in section.settings.model_fields.items():
        if _nested(field.annotation) is None:
            key = f"{section.key}.{name}".removeprefix(".")
            variable = f"ALLROADS_{key.upper().replace('.', '__')}"
            cells = (f"`{key}`<br>`{variable}`", _kind(schemas[name]), _default(key, field), docs.get(name, ""))
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def field_docs(settings: type[BaseModel]) -> dict[str, str]:
    """The docstrings under the fields of a class and of those that it is made from, a line each."""
    docs: dict[str, str] = {}
    package = MeshSettings.__module__.partition(".")[0]
    for base in reversed(settings.__mro__):
        if base.__module__.partition(".")[0] != package:
            continue
        (tree,) = ast.parse(inspect.getsource(base)).body
        for field, text in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    docs[name] = _one_line(words)
    return docs


def _nested(annotation: object) -> tuple[type[BaseModel], bool] | None:
    """The class of a part of the settings, and whether there are any number of it by name; None for a value."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation, False
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _nested(arguments[0])
    if origin in (Union, UnionType):
        return next(filter(None, map(_nested, arguments)), None)
    if origin is dict and (nested := _nested(arguments[1])) is not None:
        return nested[0], True
    return None


def _kind(schema: Mapping[str, Any]) -> str:
    """What values may be, from the JSON schema of a field."""
    match schema:
        case {"anyOf": options}:
            words = " or ".join(_kind(option) for option in options if option.get("type") != "null")
        case {"enum": values}:
            words = ", ".join(f"`{value}`" for value in values)
        case {"const": value}:
            words = f"`{value}`"
        case {"prefixItems": kinds}:
            words = f"list: {', '.join(map(_kind, kinds))}"
        case {"type": "array", "items": kind}:
            words = f"list: {_kind(kind)}"
        case {"type": "object", "additionalProperties": kind}:
            words = f"mapping: {_kind(kind)}"
        case {"format": "path"}:
            words = "path"
        case _:
            words = _WORDS[schema["type"]] + _range(schema)
    return words


def _range(schema: Mapping[str, Any]) -> str:
    unit = " characters" if "maxLength" in schema else ""
    low, high = schema.get("minimum", schema.get("minLength")), schema.get("maximum", schema.get("maxLength"))
    words = [
        f"from {low:g}" if low is not None else "",
        f"above {schema['exclusiveMinimum']:g}" if "exclusiveMinimum" in schema else "",
        f"to {high:g}{unit}" if high is not None else "",
        f"below {schema['exclusiveMaximum']:g}" if "exclusiveMaximum" in schema else "",
    ]
    return "".join(f" {word}" for word in words if word)


def _default(key: str, field: FieldInfo) -> str:
    part, _, name = key.partition(".")
    if field.is_required():
        return f"`embedded:{part}`" if name == "path" and part in ALWAYS_THERE else "must be given"
    if key == "router.scorers":
        return _EMBEDDED_SCORERS
    value = field.get_default(call_default_factory=True, validated_data={})
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case None | "" | () | {}:
            return "none"
    return f"`{value}`"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())

"""What a request says of functions that the model may call, found right."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidArgument

_MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which functions there are, and whether one must be called."""

    tools: tuple[Mapping[str, Any], ...]
    """As the chat template is shown them."""
    is_forced: bool = False
    """Whether the answer is nothing but calls."""
    named: str = ""
    """The only function that may be called; empty where the model chooses."""
    is_parallel: bool = True
    """Whether there may be several calls."""

    @property
    def names(self) -> frozenset[str]:
        """Of the functions that may be called."""
        return frozenset([self.named] if self.named else (tool["function"]["name"] for tool in self.tools))

    def forced_schema(self) -> dict[str, Any]:
        """JSON schema of an answer that is nothing but calls: one, or a list where there may be several."""
        calls = [_call_schema(tool["function"]) for tool in self.tools if tool["function"]["name"] in self.names]
        call = calls[0] if len(calls) == 1 else {"anyOf": calls}
        if self.named or not self.is_parallel:
            return call
        return {"type": "array", "minItems": 1, "items": call}


def read_tools(
    tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any], *, is_parallel: bool
) -> ToolUse | None:
    """The tools of a request; None where there are none, or none may be called.

    Raises:
        InvalidArgument: names the field.
    """
    if not tools:
        if choice not in ("auto", "none"):
            raise InvalidArgument("tool_choice needs tools", field="tool_choice")
        return None
    if len(tools) > _MAX_TOOLS:
        raise InvalidArgument(f"tools may hold {_MAX_TOOLS} tools at most, not {len(tools)}", field="tools")
    names = [_check_tool(tool, f"tools.{index}") for index, tool in enumerate(tools)]
    if len(set(names)) < len(names):
        raise InvalidArgument("tools has two functions of one name", field="tools")
    if choice == "none":
        return None
    if isinstance(choice, str):
        return ToolUse(tuple(tools), is_forced=choice == "required", is_parallel=is_parallel)
    function = choice.get("function")
    named = function.get("name") if isinstance(function, Mapping) else None
    if choice.get("type") != "function" or named not in names:
        raise InvalidArgument(
            'tool_choice must be "auto", "none", "required" or {"type": "function", "function": {"name": one of '
            f"{', '.join(names)}}}}}",
            field="tool_choice",
        )
    return ToolUse(tuple(tools), is_forced=True, named=named, is_parallel=is_parallel)


def _check_tool(tool: Mapping[str, Any], field: str) -> str:
    """The name of a tool's function."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise InvalidArgument(f"{field} must be a function: only tools of that type are supported", field=field)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{field}.function.name must have 1 to 64 letters, digits, '_', '.' and '-'", field=f"{field}.function.name"
        )
    if not isinstance(function.get("parameters") or {}, Mapping):
        raise InvalidArgument(
            f"{field}.function.parameters must be a JSON schema", field=f"{field}.function.parameters"
        )
    return name


def _call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": function.get("parameters") or {"type": "object"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }

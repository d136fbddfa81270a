"""Calls of functions told from text, however that comes; what requests may say of functions."""

import json
from typing import Any

import pytest
from allroads.errors import InvalidArgument
from allroads.gateway.openai.tool_calls import ToolCall, ToolCallReader
from allroads.gateway.openai.tools import read_tools
from hypothesis import given
from hypothesis import strategies as st

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "tells it",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
OTHER = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
TRICKY = '<tool_call>{"name": "weather", "arguments": {"city": "a </tool_call> \\" b"}}</tool_call>'


def read(pieces: list[str], **options: Any) -> list[str | ToolCall]:
    reader = ToolCallReader({"weather", "clock"}, **options)
    parts = [part for piece in pieces for part in reader.push(piece)] + reader.finish()
    merged: list[str | ToolCall] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def shown(parts: list[str | ToolCall]) -> list[object]:
    return [part if isinstance(part, str) else (part.name, json.loads(part.arguments)) for part in parts]


WEATHER_CALL = ("weather", {"city": "Ulm"})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("just text", ["just text"]),
        (" a <b> c\n", [" a <b> c\n"]),
        (CALL, [WEATHER_CALL]),
        (f"Let me see.\n{CALL}\n{OTHER}\n", ["Let me see.", WEATHER_CALL, ("clock", {})]),
        (f"{CALL} and then", [WEATHER_CALL, " and then"]),
        (TRICKY, [("weather", {"city": 'a </tool_call> " b'})]),
        (CALL.removesuffix("</tool_call>"), [WEATHER_CALL]),
        ("<tool_call>{not json}</tool_call>!", ["<tool_call>{not json}</tool_call>!"]),
        ('<tool_call>{"name": "nobody"}</tool_call>', ['<tool_call>{"name": "nobody"}</tool_call>']),
        ('<tool_call>{"name": "wea', ['<tool_call>{"name": "wea']),
        ("<tool_ca", ["<tool_ca"]),
        ('<tool_call>{"name": ["weather"]}</tool_call>', ['<tool_call>{"name": ["weather"]}</tool_call>']),
    ],
)
def test_calls_are_told_from_text(text: str, wanted: list[object]) -> None:
    assert shown(read([text])) == wanted
    assert shown(read(list(text))) == wanted


@given(
    st.lists(st.sampled_from([CALL, OTHER, TRICKY, " ", "\n", "text", "<", "<tool_call>", "</tool_call>", '"', "{}"])),
    st.integers(1, 30),
)
def test_it_does_not_matter_how_the_text_is_cut(parts: list[str], size: int) -> None:
    text = "".join(parts)
    assert shown(read([text[start : start + size] for start in range(0, len(text), size)])) == shown(read([text]))


def test_a_forced_answer_is_json_alone() -> None:
    one = '{"name": "clock", "arguments": {}}'
    assert shown(read(list(one), is_forced=True)) == [("clock", {})]
    assert shown(read([f"[{one}, {one}]"], is_forced=True)) == [("clock", {}), ("clock", {})]
    assert shown(read([f"[{one}, {one}]"], is_forced=True, is_parallel=False)) == [("clock", {})]
    assert shown(read(['[{"name": "clo'], is_forced=True)) == ['[{"name": "clo']
    assert shown(read([CALL, OTHER], is_parallel=False)) == [WEATHER_CALL]


@pytest.mark.parametrize(
    ("tools", "choice", "field"),
    [
        ([], "required", "tool_choice"),
        ([{"type": "web_search"}], "auto", "tools.0"),
        ([WEATHER, {"type": "function", "function": {"name": "a b"}}], "auto", "tools.1.function.name"),
        ([{"type": "function", "function": {"name": "a", "parameters": 7}}], "auto", "tools.0.function.parameters"),
        ([WEATHER, WEATHER], "auto", "tools"),
        ([WEATHER] * 129, "auto", "tools"),
        ([WEATHER], {"type": "function", "function": {"name": "clock"}}, "tool_choice"),
        ([WEATHER], {"type": "function"}, "tool_choice"),
    ],
)
def test_wrong_tools_are_named(tools: list[Any], choice: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_tools(tools, choice, is_parallel=True)
    assert refused.value.field == field


def test_what_is_forced_has_a_schema() -> None:
    named = read_tools([WEATHER, CLOCK], {"type": "function", "function": {"name": "weather"}}, is_parallel=True)
    assert named is not None
    assert named.forced_schema()["properties"] == {
        "name": {"const": "weather"},
        "arguments": WEATHER["function"]["parameters"],  # type: ignore[index]
    }
    required = read_tools([WEATHER, CLOCK], "required", is_parallel=True)
    assert required is not None
    assert required.forced_schema()["items"]["anyOf"][1]["properties"]["name"] == {"const": "clock"}
    assert read_tools([WEATHER], "none", is_parallel=True) is None

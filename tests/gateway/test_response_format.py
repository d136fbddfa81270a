"""What clients send so that an answer has a form: read, refused by name, and handed to the home as one grammar."""

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from allroads.engine.grammar import MAX_GRAMMAR_BYTES
from allroads.errors import InvalidArgument
from allroads.gateway.grammar import Grammar, GrammarCheck
from allroads.gateway.openai.response_format import StructureFields
from allroads.mesh.wire import common_pb2, gateway_pb2

from ..doubles.scripted_home import Script
from .conftest import MODEL, Served, gateway_over

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
UNENFORCED = {"type": "array", "uniqueItems": True}
SCHEMA_FIELD = "response_format.json_schema.schema"


def _format(schema: object, **more: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Served]:
    async with gateway_over(Script([5, 6], is_stop=True)) as served:
        yield served


@pytest.fixture
def served(shared: Served) -> Served:
    shared.home.opens.clear()
    return shared


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {"json": None, "json_object": False}}, None),
        ({"response_format": {"type": "json_object"}}, ("json_schema", {"type": "object"})),
        (_format(SCHEMA, strict=True), ("json_schema", SCHEMA)),
        (_format(SCHEMA), ("json_schema_lenient", SCHEMA)),
        (_format(SCHEMA, strict=None, description="d"), ("json_schema_lenient", SCHEMA)),
        ({"guided_json": SCHEMA}, ("json_schema_lenient", SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, ("json_schema_lenient", SCHEMA)),
        ({"guided_regex": "a+"}, ("regex", "a+")),
        ({"guided_choice": ["a", "é"]}, ("choice", ["a", "é"])),
        ({"structured_outputs": {"json": SCHEMA}}, ("json_schema_lenient", SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, ("json_schema", {"type": "object"})),
        ({"structured_outputs": {"regex": "a+", "disable_any_whitespace": True}}, ("regex", "a+")),
        ({"structured_outputs": {"choice": ["a"]}, "response_format": {"type": "text"}}, ("choice", ["a"])),
    ],
)
async def test_every_spelling_becomes_one_grammar(fields: dict[str, Any], grammar: tuple[str, object] | None) -> None:
    found = StructureFields.of(fields).grammar()
    if grammar is None:
        assert found is None
        return
    kind, content = grammar
    assert found is not None
    assert found.kind == kind
    assert (found.text if kind == "regex" else json.loads(found.text)) == content


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
        ({"response_format": {"type": ["text"]}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, SCHEMA_FIELD),
        (_format("{}"), SCHEMA_FIELD),
        (_format(SCHEMA, strict="yes"), "response_format.json_schema.strict"),
        (_format({"type": "objekt"}), SCHEMA_FIELD),
        (_format({"$ref": "#"}), SCHEMA_FIELD),
        (_format({"$ref": "http://127.0.0.1:9/x"}), SCHEMA_FIELD),
        (_format(UNENFORCED, strict=True), SCHEMA_FIELD),
        (_format({"enum": ["x" * MAX_GRAMMAR_BYTES]}), SCHEMA_FIELD),
        ({"guided_json": '{"enum": ["\\ud800"]}'}, "guided_json"),
        ({"guided_json": 3}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": '{"items":' * 2000 + "{}" + "}" * 2000}, "guided_json"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_regex": 3}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_grammar": "root ::= a"}, "guided_grammar"),
        ({"structured_outputs": {"grammar": "start: a"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.regex"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ],
)
async def test_what_is_wrong_is_named_before_the_home_hears_of_it(
    fields: dict[str, Any], field: str, served: Served
) -> None:
    for stream in (False, True):
        response = await served.chat(stream=stream, **fields)
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["param"] == field
        assert error["message"]
    assert not served.home.opens


async def test_half_a_surrogate_pair_is_no_text(served: Served) -> None:
    body = json.dumps({"model": MODEL, "prompt": "x", **_format({"enum": ["\ud800"]})})
    response = await served.http.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == SCHEMA_FIELD


async def test_the_home_gets_the_grammar(served: Served) -> None:
    assert (await served.chat(**_format(UNENFORCED))).status_code == 200
    assert (await served.complete(guided_choice=["a", "b"])).status_code == 200
    assert (await served.complete()).status_code == 200
    request = gateway_pb2.GenerateTextRequest(
        prompt="x", sampling=common_pb2.SamplingParams(grammar=common_pb2.Grammar(kind="regex", text="a+"))
    )
    async for _ in served.stub.Generate(request):
        pass
    opens = [opened.sampling for opened in served.home.opens]
    assert [sampling.HasField("grammar") for sampling in opens] == [True, True, False, True]
    assert [sampling.grammar.kind for sampling in opens] == ["json_schema_lenient", "choice", "", "regex"]
    assert json.loads(opens[0].grammar.text) == UNENFORCED


@pytest.mark.parametrize(("kind", "text"), [("xml", "<a/>"), ("", ""), ("regex", "(a"), ("choice", "a")])
async def test_a_wrong_grammar_over_grpc_is_named(kind: str, text: str, served: Served) -> None:
    request = gateway_pb2.GenerateTextRequest(
        prompt="x", sampling=common_pb2.SamplingParams(grammar=common_pb2.Grammar(kind=kind, text=text))
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in served.stub.Generate(request):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata() or ())["field"] == "sampling.grammar"


async def test_a_verdict_is_kept_and_names_the_field_of_each_request() -> None:
    check = GrammarCheck()
    for field in ("guided_json", "response_format.json_schema.schema"):
        with pytest.raises(InvalidArgument, match="objekt") as caught:
            await check.check(Grammar.json_schema({"type": "objekt"}, field=field))
        assert caught.value.field == field
    await check.check(Grammar.json_schema({}))
    await check.check(Grammar.json_object())

"""The OpenAPI document is true: every route is in it, replies are as it says, and what it allows breaks nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
import schemathesis
from allroads.gateway.openai.app import make_app
from allroads.gateway.text.tokenizer import TextTokenizer
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Served, events, gateway_over

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
NUM_EXAMPLES = 8
BODIES = {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tokenizer: TextTokenizer) -> AsyncIterator[Served]:
    script = Script(await tokenizer.encode_prompt("Aya has 37"), tiers=(0, 1), groups=(4,))
    async with gateway_over(script) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def document(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = (await served.http.get("/openapi.json")).json()
    return found


async def test_every_route_is_in_it(served: Served, document: dict[str, Any]) -> None:
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in make_app(served.gateway).routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in (route.methods or ())
        if method != "HEAD"
    }
    documented = {(path, method) for path, operations in document["paths"].items() for method in operations}
    assert documented == routes


async def test_every_field_is_described(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        assert schema.get("description"), name
        for field, described in schema.get("properties", {}).items():
            refers = "$ref" in described or any("$ref" in part for part in described.get("anyOf", ()))
            assert described.get("description") or refers, f"{name}.{field}"
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["summary"]
            assert all(response["description"] for response in operation["responses"].values()), path


@pytest.mark.parametrize(
    ("path", "schema", "fields"),
    [
        ("/v1/chat/completions", "ChatCompletion", {}),
        ("/v1/chat/completions", "ChatCompletion", {"n": 2, "logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", "ChatCompletion", {"return_token_ids": True, "routing": {"report_tokens": True}}),
        ("/v1/completions", "Completion", {"routing": {"report_scores": True}}),
        ("/v1/completions", "Completion", {"echo": True, "logprobs": 2, "n": 2, "max_tokens": 0}),
        ("/v1/completions", "Completion", {"prompt": ["a", "b"], "return_token_ids": True}),
        ("/tokenize", "Tokenized", {"prompt": "Aya", "return_token_strs": True}),
        ("/detokenize", "Detokenized", {"tokens": [5, 6]}),
        ("/v1/chat/completions", "ErrorReply", {"temperature": 3}),
        ("/detokenize", "ErrorReply", {}),
    ],
)
async def test_replies_are_as_it_says(
    served: Served, document: dict[str, Any], path: str, schema: str, fields: dict[str, Any]
) -> None:
    needed: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/completions": {"prompt": "x"},
    }
    body = (await served.post(path, **{**needed.get(path, {}), **fields})).json()
    whole = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    jsonschema_rs.validator_for(whole).validate(body)


async def test_what_it_allows_breaks_nothing(served: Served, document: dict[str, Any]) -> None:
    """Schemathesis: requests that fit the document, and some that do not; no 5xx, and replies as it says."""
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=served.url)

    def ask(strategy: Any) -> None:
        @seed(1)
        @settings(
            max_examples=NUM_EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def one(case: Any) -> None:
            if isinstance(case.body, dict) and "model" in case.body:
                # Else nearly all would end there.
                case.body["model"] = served.settings.model_name
            case.call_and_validate(checks=CHECKS)

        one()

    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        for mode in schemathesis.GenerationMode:
            if mode is schemathesis.GenerationMode.POSITIVE or operation.path in BODIES:
                await asyncio.to_thread(ask, operation.as_strategy(generation_mode=mode))


async def test_chunks_of_a_stream_are_replies_in_parts(served: Served) -> None:
    chunks = events(await served.chat(stream=True))
    assert {chunk["object"] for chunk in chunks[:-1]} == {"chat.completion.chunk"}

"""C07, C09, C10, C12, C14: what is refused, with which status and field, before any model works."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from allroads.config import embedded_path
from allroads.gateway.text.tokenizer import TextTokenizer

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, WINDOW, Served, gateway_over

USER = [{"role": "user", "content": "x"}]
NO_NUMBERS: tuple[object, ...] = ("0.5", True, {}, {"a": 1}, [True], ["0.5"], [None], [[0.5]], 10**400, [10**400])


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tokenizer: TextTokenizer) -> AsyncIterator[Served]:
    script = Script(await tokenizer.encode_prompt("12345678"), is_endless=True, groups=(50,))
    async with gateway_over(script, max_body_bytes=100_000) as served:
        yield served


@pytest.fixture
def served(shared: Served) -> Served:
    shared.home.opens.clear()
    return shared


def check_error(response: httpx.Response, status: int, field: str | None, code: str | None = None) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == field, error
    assert error["code"] == code
    assert "Traceback" not in response.text
    message: str = error["message"]
    return message


async def check_still_serves(served: Served) -> None:
    num_opens = len(served.home.opens)
    assert (await served.chat(max_tokens=1)).status_code == 200
    assert len(served.home.opens) == num_opens + 1, "a refused request reached the home"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"),
        ({"prompt": "a\ud800b"}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop.0"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"routing": {"policy": "no-such"}}, "routing.policy"),
        ({"routing": {"threshold": -0.1}}, "routing.threshold"),
        ({"routing": {"threshold": 1.5}}, "routing.threshold"),
        ({"routing": {"threshold": "0.5"}}, "routing.threshold"),
        ({"routing": {"threshold": 0.5, "policy": "slm"}}, "routing.threshold"),
        ({"routing": {"share": 2}}, "routing.share"),
        ({"routing": {"policy": "random"}}, "routing.share"),
        ({"routing": {"policy": 1}}, "routing.policy"),
        ({"routing": {"report_tokens": 1}}, "routing.report_tokens"),
        *(({"routing": {"threshold": value}}, "routing.threshold") for value in NO_NUMBERS),
        ({"routing": {"threshold": [0.1, 0.2]}}, "routing.threshold"),
        ({"routing": {"threshold": []}}, "routing.threshold"),
        ({"routing": {"policy": "speculative", "draft_tokens": 6.5}}, "routing.draft_tokens"),
        ({"routing": {"policy": "speculative", "draft_tokens": 0}}, "routing.draft_tokens"),
        ({"routing": {"policy": "me"}}, "routing.weights"),
        ({"routing": {"policy": "me", "weights": 0.5}}, "routing.weights"),
        ({"routing": {"policy": "me", "weights": [0.5, 0.3, 0.2]}}, "routing.weights"),
        ({"routing": {"policy": "me", "weights": [0.5, -0.1]}}, "routing.weights"),
        ({"routing": {"policy": "me", "weights": [0.5] * 65}}, "routing.weights"),
        ({"routing": {f"p{index}": 1 for index in range(17)}}, "routing"),
        ({"routing": {"bar": 2}}, "routing.bar"),
        ({"routing": {"x" * 64: 2}}, f"routing.{'x' * 64}"),
        *(({"routing": {name: 2}}, "routing") for name in ("", "x" * 65, "\u00e9", "a\ud800", "a b", "a\n")),
        ({"routing": 1}, "routing"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": 1}, "echo"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"cache_salt": "x"}, "cache_salt"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"presence_penalty": "1"}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 10.1}, "repetition_penalty"),
        ({"logit_bias": [1]}, "logit_bias"),
        *(({"logit_bias": {key: 1}}, "logit_bias") for key in ("", "a", "-1", "1.0", "01", " 1", "\u0661", "9" * 5000)),
        *(({"logit_bias": {"1": value}}, "logit_bias") for value in ("1", None, True, [1], 100.5, -101, 10**400)),
        ({"logit_bias": {"1": 1, "1000000": 1}}, "logit_bias"),
        ({"logit_bias": {str(token_id): 1 for token_id in range(1025)}}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"min_tokens": 2**40, "max_tokens": 2**41}, "min_tokens"),
    ],
)
async def test_a_wrong_field_is_named(served: Served, fields: dict[str, Any], field: str) -> None:
    body = json.dumps({"model": MODEL, "prompt": "x", **fields})
    headers = {"content-type": "application/json"}
    for stream in (False, True):
        content = json.dumps({**json.loads(body), "stream": stream})
        check_error(await served.http.post("/v1/completions", content=content, headers=headers), 400, field)
    await check_still_serves(served)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content.0"),
        ({"messages": [*USER, {"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages.1.tool_calls.0"),
        ({"tools": [{"type": "function"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"min_tokens": 3, "max_completion_tokens": 2, "max_tokens": 9}, "min_tokens"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"audio": {}}, "audio"),
    ],
)
async def test_a_wrong_chat_is_named(served: Served, fields: dict[str, Any], field: str) -> None:
    check_error(await served.chat(**fields), 400, field)
    await check_still_serves(served)


async def test_null_means_absent_and_what_asks_for_nothing_is_accepted(served: Served) -> None:
    optional = (
        *("temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n"),
        *("stream", "stream_options", "tools", "logit_bias", "user", "routing", "stop_token_ids", "ignore_eos"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "logprobs", "top_logprobs"),
    )
    assert (await served.chat(**dict.fromkeys(optional))).status_code == 200
    harmless = {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "tools": [], "foo": 1}
    harmless |= {"top_logprobs": 0, "logit_bias": {}, "repetition_penalty": 1, "min_tokens": 0}
    nested = {"routing": {"policy": None, "threshold": None, "bar": None}, "stream_options": {"include_usage": None}}
    assert (await served.chat(**harmless, **nested)).status_code == 200
    for opened in served.home.opens:
        assert opened.sampling.temperature == 1.0
        assert not opened.sampling.HasField("num_logprobs")
    assert served.home.opens[0].max_tokens == WINDOW - len(served.home.opens[0].prompt_token_ids)


async def test_max_completion_tokens_wins(served: Served) -> None:
    for fields, wanted in (({"max_completion_tokens": 3}, 3), ({"max_completion_tokens": 2, "max_tokens": 9}, 2)):
        body = (await served.chat(**fields)).json()
        assert body["usage"]["completion_tokens"] == wanted
        assert body["choices"][0]["finish_reason"] == "length"
    one = (await served.chat(max_tokens=1)).json()
    assert one["usage"]["completion_tokens"] == 1
    assert one["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b'{"model":"allroads","messages":[],x}', {}, 400),
        (b"", {}, 400),
        (b"[]", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"[" * 50_000, {}, 400),
        (b'{"model":"allroads","temperature":NaN}', {}, 400),
        (b'{"model":"allroads","messages":[],"seed":' + b"1" * 5000 + b"}", {}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"x" * 2_000_000, {}, 413),
    ],
)
async def test_a_body_that_is_no_json_object(
    served: Served, content: bytes, headers: dict[str, str], status: int
) -> None:
    headers = {"content-type": "application/json", **headers}
    check_error(await served.http.post("/v1/chat/completions", content=content, headers=headers), status, None)

    async def chunked() -> Any:
        for start in range(0, len(content), 10_000):
            yield content[start : start + 10_000]

    check_error(await served.http.post("/v1/chat/completions", content=chunked(), headers=headers), status, None)
    await check_still_serves(served)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (b'"temperature":1e400', "temperature"),
        (b'"routing":{"threshold":1e400}', "routing.threshold"),
        (b'"routing":{"policy":"speculative","patience":[1e400]}', "routing.patience"),
    ],
)
async def test_a_number_beyond_a_double_is_refused(served: Served, fields: bytes, field: str) -> None:
    body = b'{"model":"allroads","prompt":"x",%s}' % fields
    headers = {"content-type": "application/json"}
    check_error(await served.http.post("/v1/completions", content=body, headers=headers), 400, field)
    check_error(
        await served.http.post("/v1/completions", content=body.replace(b"1e400", b"NaN"), headers=headers), 400, None
    )


async def test_a_refused_parameter_is_told_what_would_be_right(served: Served) -> None:
    for routing, wanted in (
        ({"threshold": 1.5}, "a number from 0 to 1, not 1.5"),
        ({"policy": "speculative", "draft_tokens": 17}, "a whole number from 1 to 16, not 17"),
        ({"policy": "me", "weights": [1]}, "2 numbers from 0 to 1000, one for each tier, not 1"),
        ({"policy": "random"}, "random needs share: a number from 0 to 1"),
        ({"policy": "speculative", "share": 1}, "its parameters: draft_tokens, patience"),
        ({"policy": "no-such"}, "there are me, r2r, random, slm, speculative"),
    ):
        response = await served.chat(routing=routing)
        assert response.status_code == 400
        assert wanted in response.json()["error"]["message"]


async def test_unknown_models_and_paths(served: Served) -> None:
    for stream in (False, True):
        response = await served.chat(model="no-such", stream=stream)
        assert "no-such" in check_error(response, 404, "model", "model_not_found")
    check_error(await served.http.get("/v1/models/no-such"), 404, "model", "model_not_found")
    check_error(await served.http.post("/v1/chat/completions", json={"messages": USER}), 400, "model")
    check_error(await served.http.get("/v1/nothing"), 404, None, "not_found")
    check_error(await served.http.get("/v1/chat/completions"), 405, None, "not_found")
    await check_still_serves(served)


async def test_text_parts_are_joined_without_loss(served: Served) -> None:
    parts = [{"type": "text", "text": "tell me "}, {"type": "text", "text": "a joke"}]
    await served.chat(messages=[{"role": "user", "content": parts}], max_tokens=1)
    await served.chat(messages=[{"role": "user", "content": "tell me a joke"}], max_tokens=1)
    assert served.home.opens[0].prompt_token_ids == served.home.opens[1].prompt_token_ids
    assert (await served.chat(messages=[{"role": "user", "content": ""}], max_tokens=1)).status_code == 200


async def test_a_template_refuses_in_its_own_words(
    tokenizer: TextTokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((embedded_path("llm") / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
        "{% if loop.previtem and loop.previtem.role == m.role %}{{ raise_exception('roles alternate') }}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    async with gateway_over(Script(await tokenizer.encode_prompt("1")), path=tmp_path) as served:
        system = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
        assert "no system role here" in check_error(await served.chat(messages=system), 400, "messages")
        assert "roles alternate" in check_error(await served.chat(messages=USER + USER), 400, "messages")
        assert [record.levelname for record in caplog.records if "template" in record.message] == ["WARNING"] * 2
        assert (await served.chat()).status_code == 200


@pytest.mark.parametrize("extra", [-1, 0, 1, 9 * WINDOW])
@pytest.mark.parametrize("max_tokens", [None, 1, 10 * WINDOW])
async def test_a_prompt_must_leave_room_for_one_token(served: Served, extra: int, max_tokens: int | None) -> None:
    prompt = [5] * (WINDOW + extra)
    response = await served.complete(prompt=prompt, max_tokens=max_tokens)
    if extra < 0:
        body = response.json()
        assert body["usage"]["prompt_tokens"] == WINDOW - 1
        assert body["usage"]["total_tokens"] == WINDOW
        assert body["choices"][0]["finish_reason"] == "length"
    else:
        message = check_error(response, 400, "prompt", "context_length_exceeded")
        assert str(WINDOW) in message
        assert str(len(prompt)) in message
    await check_still_serves(served)


async def test_a_long_chat_is_refused_by_its_messages(served: Served) -> None:
    messages = [{"role": "user", "content": "apples and " * 3000}]
    check_error(await served.chat(messages=messages), 400, "messages", "context_length_exceeded")

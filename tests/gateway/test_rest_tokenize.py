"""Text to tokens and back, in vLLM's shapes; what the small endpoints say by method and content type."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from allroads.gateway.text.tokenizer import TextTokenizer

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, WINDOW, Served, gateway_over

TEXT = "Aya has 37 äpples"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tokenizer: TextTokenizer) -> AsyncIterator[Served]:
    async with gateway_over(
        Script(await tokenizer.encode_prompt("<|im_start|>1<|im_end|>2, 3")), max_body_bytes=200_000
    ) as served:
        yield served


async def test_a_text_goes_there_and_back(served: Served, tokenizer: TextTokenizer) -> None:
    for fields in ({}, {"model": None}, {"add_special_tokens": False}):
        body = (await served.http.post("/tokenize", json={"prompt": TEXT, **fields})).json()
        assert body["tokens"] == await tokenizer.encode_prompt(TEXT)
        assert body["count"] == len(body["tokens"])
        assert body["max_model_len"] == WINDOW
        assert body["token_strs"] is None
    told = (await served.post("/tokenize", prompt=TEXT, return_token_strs=True)).json()
    assert told["token_strs"] == [tokenizer.vocabulary.tokens[token_id] for token_id in told["tokens"]]
    back = await served.http.post("/detokenize", json={"model": MODEL, "tokens": told["tokens"]})
    assert back.json() == {"prompt": TEXT}
    assert (await served.post("/detokenize", tokens=[])).json() == {"prompt": ""}


async def test_a_long_text_goes_there_and_back(served: Served) -> None:
    text = TEXT * 3000
    tokens = (await served.post("/tokenize", prompt=text)).json()["tokens"]
    assert (await served.post("/detokenize", tokens=tokens)).json()["prompt"] == text


async def test_a_conversation_is_tokenized_as_a_chat_sends_it(served: Served) -> None:
    messages = [{"role": "user", "content": "x"}]
    tokens = (await served.post("/tokenize", messages=messages)).json()["tokens"]
    await served.chat(messages=messages, max_tokens=1)
    assert tokens == list(served.home.opens[-1].prompt_token_ids)
    bare = (await served.post("/tokenize", messages=messages, add_generation_prompt=False)).json()["tokens"]
    assert bare == tokens[: len(bare)]
    assert len(bare) < len(tokens)
    text = (await served.post("/detokenize", tokens=tokens)).json()["prompt"]
    assert text == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/tokenize", {"prompt": "a\ud800"}, "prompt"),
        ("/tokenize", {"model": "no-such", "prompt": "x"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens.0"),
    ],
)
async def test_a_wrong_field_is_named(served: Served, path: str, fields: dict[str, Any], field: str) -> None:
    headers = {"content-type": "application/json"}
    response = await served.http.post(path, content=json.dumps(fields), headers=headers)
    assert response.status_code == (404 if field == "model" else 400)
    assert response.json()["error"]["param"] == field


async def test_the_tokenizer_tells_of_itself(served: Served) -> None:
    """What lm-eval's remote tokenizer reads."""
    info = (await served.http.get("/tokenizer_info")).json()
    assert info["eos_token"] == "<|im_end|>"
    assert "add_generation_prompt" in info["chat_template"]


async def test_special_tokens_and_stop_texts_are_shown_to_those_who_ask(served: Served) -> None:
    async def text(**fields: Any) -> str:
        body = (await served.complete(max_tokens=50, ignore_eos=True, **fields)).json()
        shown: str = body["choices"][0]["text"]
        return shown

    assert await text() == "12, 3"
    assert await text(skip_special_tokens=False) == "<|im_start|>1<|im_end|>2, 3"
    assert await text(stop=", ") == "12"
    assert await text(stop=", ", include_stop_str_in_output=True) == "12, "
    assert await text(stop=["2", "2,"], include_stop_str_in_output=True) == "12"


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/health", "application/json"),
        ("/ready", "application/json"),
        ("/version", "application/json"),
        ("/v1/models", "application/json"),
        (f"/v1/models/{MODEL}", "application/json"),
        ("/tokenizer_info", "application/json"),
        ("/openapi.json", "application/json"),
        ("/metrics", "text/plain"),
    ],
)
async def test_small_endpoints_by_method(served: Served, path: str, media_type: str) -> None:
    got, head = await served.http.get(path), await served.http.head(path)
    for response in (got, head):
        assert response.status_code == 200
        assert response.headers["content-type"].partition(";")[0] == media_type
    assert head.content == b""
    for method in ("OPTIONS", "POST", "DELETE"):
        refused = await served.http.request(method, path)
        assert refused.status_code == 405
        assert "GET" in refused.headers["allow"]
        assert refused.json()["error"]["code"] == "not_found"


async def test_fields_that_other_servers_know_are_ignored_where_they_harm_nobody(served: Served) -> None:
    harmless: dict[str, Any] = {
        "priority": 3, "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "request_id": "mine",
        "spaces_between_special_tokens": False, "include_reasoning": True, "separate_reasoning": True,
        "stream_reasoning": True, "no_stop_trim": False, "length_penalty": 1.0, "use_beam_search": False,
        "prompt_logprobs": None, "parallel_tool_calls": True, "lora_path": None, "verbosity": "low",
        "safety_identifier": "x", "prompt_cache_key": "x",
    }  # fmt: skip
    assert (await served.chat(**harmless)).status_code == 200
    for field, value in (
        ("bad_words", ["x"]), ("allowed_token_ids", [1]), ("prompt_logprobs", 1), ("length_penalty", 2.0),
        ("lora_path", "x"), ("chat_template", "x"), ("documents", [{}]), ("suffix", "x"), ("modalities", ["audio"]),
    ):  # fmt: skip
        refused = await served.complete(**{field: value})
        assert refused.status_code == 400, field
        assert refused.json()["error"]["param"] == field

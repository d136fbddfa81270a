"""Log-probabilities over both APIs: each token's entry once, in its own piece, in OpenAI's forms."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import common_pb2, gateway_pb2

from tests.doubles.scripted_home import Script, made_up_logprobs
from tests.gateway.conftest import MODEL, Serve, Served, events, joined

TEXT = "Aya 世界 👩‍🚀 has  37"
USER = [{"role": "user", "content": "x"}]
REPORT = {"report_tokens": True}
Entries = list[dict[str, Any]]


async def pieces(tokenizer: TextTokenizer, *texts: str) -> list[int]:
    return [token_id for text in texts for token_id in await tokenizer.encode_prompt(text)]


def chat_entries(tokenizer: TextTokenizer, token_ids: list[int], num_top: int) -> Entries:
    """What OpenAI's API would say of the scripted home's numbers."""

    def shown(token_id: int, logprob: float) -> dict[str, Any]:
        token = tokenizer.token_texts[token_id]
        return {"token": token.text, "logprob": logprob, "bytes": list(token.data)}

    told = [made_up_logprobs(index, token_id, num_top) for index, token_id in enumerate(token_ids)]
    return [
        shown(token_id, entry.logprob)
        | {"top_logprobs": [shown(*top) for top in zip(entry.top_token_ids, entry.top_logprobs, strict=True)]}
        for token_id, entry in zip(token_ids, told, strict=True)
    ]


def entries_of(chunks: list[Any]) -> Entries:
    choices = [choice for chunk in chunks if chunk != "[DONE]" for choice in chunk["choices"]]
    return [entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]


@pytest.mark.parametrize("groups", [(1,), (2,), (3, 1), (100,)])
@pytest.mark.parametrize("num_top", [0, 2, 20])
async def test_a_chat_has_an_entry_for_each_token(
    serve: Serve, tokenizer: TextTokenizer, groups: tuple[int, ...], num_top: int
) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    served = await serve(Script(token_ids, groups=groups))
    wanted = chat_entries(tokenizer, token_ids, num_top)
    choice = (await served.chat(logprobs=True, top_logprobs=num_top)).json()["choices"][0]
    assert choice["logprobs"] == {"content": wanted, "refusal": None}
    assert bytes(byte for entry in wanted for byte in entry["bytes"]).decode() == choice["message"]["content"] == TEXT
    chunks = await served.chunks(logprobs=True, top_logprobs=num_top)
    assert entries_of(chunks) == wanted
    assert joined(chunks) == TEXT
    assert chunks[0]["choices"][0]["logprobs"] is chunks[-2]["choices"][0]["logprobs"] is None
    assert [opened.sampling.num_logprobs for opened in served.home.opens] == [num_top, num_top]


async def read_until(lines: AsyncIterator[str], num_entries: int | None) -> list[Any]:
    """Chunks of a stream until so many entries have come; all of them with None."""
    chunks = []
    async for line in lines:
        if line.startswith("data: {"):
            chunks.append(json.loads(line.removeprefix("data: ")))
            if len(entries_of(chunks)) == num_entries:
                break
    return chunks


async def test_an_entry_comes_with_its_token_though_the_text_is_held(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await pieces(tokenizer, "ABC", "DEF", "G", "HI", "J", "世")
    num_held = len(await pieces(tokenizer, "ABC", "DEF", "G"))
    script = Script(token_ids, hold=asyncio.Event(), num_before_hold=num_held)
    served = await serve(script)
    assert script.hold is not None
    body = {"model": MODEL, "messages": USER, "stream": True, "logprobs": True, "stop": "DEFGHIZ", "routing": REPORT}
    async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.aiter_lines()
        chunks = await read_until(lines, num_held)
        assert joined(chunks) == "ABC"
        script.hold.set()
        chunks += await read_until(lines, None)
    assert joined(chunks) == "ABCDEFGHIJ世"
    assert entries_of(chunks) == chat_entries(tokenizer, token_ids, 0)
    for chunk in chunks[1:-1]:
        tokens = [tokenizer.token_texts[token_id].text for token_id in chunk["routing"]["token_ids"]]
        assert [entry["token"] for entry in entries_of([chunk])] == tokens


@pytest.mark.parametrize("groups", [(1,), (3,), (100,)])
async def test_the_tokens_of_a_stop_string_have_entries_and_those_behind_it_none(
    serve: Serve, tokenizer: TextTokenizer, groups: tuple[int, ...]
) -> None:
    kept = await pieces(tokenizer, "ABC", "DEF", "G")
    served = await serve(Script([*kept, *await pieces(tokenizer, "HI", "J")], groups=groups))
    wanted = chat_entries(tokenizer, kept, 1)
    fields = {"logprobs": True, "top_logprobs": 1, "stop": "FG"}
    body = (await served.chat(**fields)).json()
    assert body["choices"][0]["message"]["content"] == "ABCDE"
    assert body["choices"][0]["logprobs"]["content"] == wanted
    assert body["usage"]["completion_tokens"] == len(wanted)
    assert entries_of(await served.chunks(**fields)) == wanted


async def test_a_stop_token_counts_and_has_an_entry(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await pieces(tokenizer, "7", "8", "<|im_end|>")
    served = await serve(Script(token_ids, is_stop=True))
    choice = (await served.chat(logprobs=True)).json()["choices"][0]
    assert choice["message"]["content"] == "78"
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["7", "8", "<|im_end|>"]
    logprobs = (await served.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["7", "8", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 1, 2]


@pytest.mark.parametrize("groups", [(1,), (3,), (100,)])
async def test_a_completion_has_parallel_lists(serve: Serve, tokenizer: TextTokenizer, groups: tuple[int, ...]) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    served = await serve(Script(token_ids, groups=groups))
    fields = {"logprobs": 2, "max_tokens": 100, "prompt": ["x", "y"]}
    choices = (await served.complete(**fields)).json()["choices"]
    streamed = events(await served.complete(**fields, stream=True))[:-1]
    for index, choice in enumerate(choices):
        logprobs = choice["logprobs"]
        assert logprobs.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
        assert logprobs["tokens"] == [tokenizer.token_texts[token_id].text for token_id in token_ids]
        assert logprobs["token_logprobs"] == [-(n + 1) / 8 for n in range(len(token_ids))]
        for n, (token_id, top) in enumerate(zip(token_ids, logprobs["top_logprobs"], strict=True)):
            entry = made_up_logprobs(n, token_id, 2)
            likeliest = [tokenizer.token_texts[top_id].text for top_id in entry.top_token_ids]
            assert top == dict(zip(likeliest, entry.top_logprobs, strict=True))
        offsets = logprobs["text_offset"]
        assert offsets == sorted(offsets)
        for n, token in enumerate(logprobs["tokens"]):
            assert TEXT.startswith(token, offsets[n]) or token.startswith("bytes:")
        own = [c["choices"][0]["logprobs"] for c in streamed if c["choices"][0]["index"] == index]
        assert {key: [value for block in own if block for value in block[key]] for key in logprobs} == logprobs


async def test_offsets_point_at_characters_that_lie_in_several_tokens(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await pieces(tokenizer, "A", "世", "B")
    served = await serve(Script(token_ids))
    logprobs = (await served.complete(logprobs=1, max_tokens=99)).json()["choices"][0]["logprobs"]
    num_parts = len(token_ids) - 2
    assert num_parts > 1
    assert logprobs["text_offset"] == [0, *[1] * num_parts, 2]


async def test_the_token_written_is_always_among_the_top_of_a_completion(
    serve: Serve, tokenizer: TextTokenizer
) -> None:
    token_ids = await pieces(tokenizer, "7", "8")

    def other_top(index: int, token_id: int, count: int) -> common_pb2.TokenLogprobs:
        return common_pb2.TokenLogprobs(logprob=-5, top_token_ids=token_ids[1:][:count], top_logprobs=[-0.5][:count])

    served = await serve(Script(token_ids, logprobs=other_top))
    logprobs = (await served.complete(logprobs=1)).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"8": -0.5, "7": -5.0}, {"8": -0.5}]
    logprobs = (await served.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"7": -5.0}, {"8": -5.0}]


async def test_the_openai_package_reads_them(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    served = await serve(Script(token_ids))
    messages: Any = [{"role": "user", "content": "x"}]
    async with served.openai() as client:
        chat = await client.chat.completions.create(model=MODEL, messages=messages, logprobs=True, top_logprobs=3)
        assert chat.choices[0].logprobs is not None
        assert chat.choices[0].logprobs.content is not None
        assert [len(entry.top_logprobs) for entry in chat.choices[0].logprobs.content] == [3] * len(token_ids)
        stream = await client.chat.completions.create(model=MODEL, messages=messages, logprobs=True, stream=True)
        told = [chunk.choices[0].logprobs.content or [] async for chunk in stream if chunk.choices[0].logprobs]
        assert [entry.token for entries in told for entry in entries] == [
            entry.token for entry in chat.choices[0].logprobs.content
        ]
        completion = await client.completions.create(model=MODEL, prompt="x", logprobs=5, max_tokens=100)
        assert completion.choices[0].logprobs is not None
        assert len(completion.choices[0].logprobs.top_logprobs or []) == len(token_ids)


async def test_who_does_not_ask_gets_none(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya")))
    asking, plain = await asyncio.gather(served.chat(logprobs=True), served.chat())
    assert len(asking.json()["choices"][0]["logprobs"]["content"]) == len(await tokenizer.encode_prompt("Aya"))
    assert plain.json()["choices"][0]["logprobs"] is None
    assert (await served.complete()).json()["choices"][0]["logprobs"] is None


async def test_json_never_carries_an_infinity(serve: Serve, tokenizer: TextTokenizer) -> None:
    bad = common_pb2.TokenLogprobs(logprob=-math.inf, top_token_ids=[5, 6], top_logprobs=[math.nan, -math.inf])
    served = await serve(Script(await tokenizer.encode_prompt("A"), logprobs=lambda *_: bad))
    entry = (await served.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"][0]
    assert [entry["logprob"], *(top["logprob"] for top in entry["top_logprobs"])] == [-9999.0] * 3
    assert "NaN" not in (await served.chat(logprobs=True, stream=True)).text
    assert (await served.complete(logprobs=2)).json()["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0]


async def test_a_home_that_leaves_entries_out_fails_those_who_ask(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("Aya"), logprobs=None))
    asking, plain = await asyncio.gather(served.chat(logprobs=True), served.chat())
    assert asking.status_code == 500
    assert "log-probabilities" in asking.json()["error"]["message"]
    assert plain.status_code == 200
    await served.gateway.wait_until_idle()


async def restart(served: Served) -> None:
    await served.home.die()
    await served.until_ready(False)
    await served.home.start(served.settings.slm.address)


async def test_a_restarted_home_leaves_the_entries_of_committed_tokens(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    script = Script(token_ids, hold=asyncio.Event(), num_before_hold=5)
    served = await serve(script)
    assert script.hold is not None
    whole = asyncio.create_task(served.chat(logprobs=True, top_logprobs=1))
    body = {"model": MODEL, "messages": USER, "stream": True, "logprobs": True, "top_logprobs": 1}
    async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.aiter_lines()
        chunks = await read_until(lines, 5)
        await restart(served)
        script.hold.set()
        chunks += await read_until(lines, None)
    wanted = chat_entries(tokenizer, token_ids, 1)
    assert entries_of(chunks) == wanted
    assert (await whole).json()["choices"][0]["logprobs"]["content"] == wanted
    assert 5 in [len(opened.committed_token_ids) for opened in served.home.opens[2:]]


async def test_grpc_tells_them_parallel_to_the_tokens(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    served = await serve(Script(token_ids, groups=(3,)))
    for num_logprobs in (2, None):
        sampling = common_pb2.SamplingParams(num_logprobs=num_logprobs)
        call = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x", sampling=sampling))
        responses = []
        while isinstance(response := await call.read(), gateway_pb2.GenerateTextResponse):
            responses.append(response)
        found = [entry for response in responses for entry in response.logprobs]
        if num_logprobs is None:
            assert found == []
        else:
            assert all(len(response.logprobs) == len(response.token_ids) for response in responses)
            assert found == [made_up_logprobs(index, token_id, 2) for index, token_id in enumerate(token_ids)]

"""C06: what a stream consists of, and in which order; and that the openai package reads it."""

from typing import Any

from allroads.gateway.text.tokenizer import TextTokenizer

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, events, finish_reasons, joined

TEXT = "To begin, Aya has 37 apples."


async def script_of(tokenizer: TextTokenizer, text: str = TEXT, **options: Any) -> Script:
    return Script(await tokenizer.encode_prompt(text), **options)


async def test_a_chat_stream_has_role_then_text_then_finish_then_done(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(await script_of(tokenizer))
    chunks = await served.chunks()
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert joined(chunks) == TEXT
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert finish_reasons(chunks) == ["length"]
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks[:-1]}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert not any(chunk.get("usage") for chunk in chunks[:-1])


async def test_usage_comes_once_in_a_chunk_without_choices(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(await script_of(tokenizer))
    chunks = await served.chunks(stream_options={"include_usage": True}, max_tokens=5)
    *others, last, done = chunks
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 5
    assert not any(chunk.get("usage") for chunk in others)


async def test_the_openai_package_reads_chats_and_completions(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(await script_of(tokenizer))
    async with served.openai() as client:
        whole = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
        assert whole.choices[0].message.content == TEXT
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
        completion = await client.completions.create(model=MODEL, prompt="x", max_tokens=100)
        assert completion.choices[0].text == TEXT
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_the_routing_block_says_who_wrote_what(serve: Serve, tokenizer: TextTokenizer) -> None:
    script = await script_of(tokenizer, tiers=(0, 0, 1), groups=(2,))
    served = await serve(script)
    num_tokens = len(script.token_ids)
    tiers = [(0, 0, 1)[index % 3] for index in range(num_tokens)]
    whole = (await served.chat(routing={"report_tokens": True})).json()["routing"]
    assert whole["policy"] == "r2r"
    assert whole["tokens"] == {"slm": tiers.count(0), "llm": tiers.count(1)}
    assert whole["llm_share"] == tiers.count(1) / num_tokens
    assert whole["token_ids"] == list(script.token_ids)
    assert whole["tiers"] == tiers
    assert whole["scored_tokens"] == num_tokens
    assert whole["degraded"] is False
    chunks = await served.chunks(routing={"report_tokens": True, "policy": "slm"})
    blocks = [chunk["routing"] for chunk in chunks[:-1] if "routing" in chunk]
    assert [token_id for block in blocks[:-1] for token_id in block["token_ids"]] == list(script.token_ids)
    assert [tier for block in blocks[:-1] for tier in block["tiers"]] == tiers
    assert blocks[-1]["tokens"] == whole["tokens"]
    assert blocks[-1]["policy"] == "slm"
    assert "routing" not in (await served.chunks())[1]


async def test_a_completion_takes_a_prompt_in_four_shapes(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(await script_of(tokenizer))
    ids = await tokenizer.encode_prompt("Aya has")
    for prompt, num_choices in (("Aya has", 1), (ids, 1), (["Aya has", "Aya"], 2), ([ids, ids, ids], 3)):
        body = (await served.complete(prompt=prompt, max_tokens=100)).json()
        assert [choice["text"] for choice in body["choices"]] == [TEXT] * num_choices
        assert [choice["index"] for choice in body["choices"]] == list(range(num_choices))
    assert served.home.opens[0].prompt_token_ids == ids == served.home.opens[1].prompt_token_ids
    streamed = events(await served.complete(prompt=["Aya has", "Aya"], max_tokens=100, stream=True))
    for index in (0, 1):
        own = [c["choices"][0] for c in streamed[:-1] if c["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == TEXT
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["length"]


async def test_opens_of_one_tick_travel_in_one_message(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(await script_of(tokenizer))
    await served.complete(prompt=["a", "b", "c", "d"])
    assert served.home.batches == [4]


async def test_small_endpoints(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(await script_of(tokenizer, tiers=(0, 1)))
    await served.chat()
    for path, content in (("/health", "ok"), ("/ready", "ready"), ("/version", "version")):
        response = await served.http.get(path)
        assert response.status_code == 200
        assert content in response.text
    scrape = (await served.http.get("/metrics")).text
    for line in (
        'allroads_requests_total{finish_reason="length"} 1.0',
        "allroads_requests_running 0.0",
        "allroads_kv_tokens_free 900.0",
        "allroads_time_to_first_token_seconds_count 1.0",
        'allroads_info{model="allroads"',
    ):
        assert line in scrape


async def test_tokens_that_follow_fast_travel_together_and_the_end_waits_for_nobody(
    serve: Serve, tokenizer: TextTokenizer
) -> None:
    served = await serve(await script_of(tokenizer), piece_interval_s=3600)
    for _ in range(2):
        chunks = await served.chunks()
        assert joined(chunks) == TEXT
        assert finish_reasons(chunks) == ["length"]
        assert len(chunks) <= 6

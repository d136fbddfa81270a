"""C06: several answers to a prompt, each a sequence of its own, side by side in one reply."""

from collections import Counter
from typing import Any

import pytest
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import model_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served, events

TEXTS = ("To begin", "Aya has 37", "so she buys more apples")


@pytest.fixture
async def served(serve: Serve, tokenizer: TextTokenizer) -> Served:
    """Answers in turn with each of the texts."""
    answers = [await tokenizer.encode_prompt(text) for text in TEXTS]
    asked: Counter[str] = Counter()

    def script(_: model_pb2.OpenRequest) -> Script:
        asked["all"] += 1
        return Script(answers[(asked["all"] - 1) % len(answers)])

    return await serve(script)


async def test_each_choice_is_a_sequence_with_a_seed_of_its_own(served: Served) -> None:
    body = (await served.chat(n=3, seed=2**64 - 2, temperature=1)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert sorted(choice["message"]["content"] for choice in body["choices"]) == sorted(TEXTS)
    assert [opened.sampling.seed for opened in served.home.opens] == [2**64 - 2, 2**64 - 1, 0]
    assert len({tuple(opened.prompt_token_ids) for opened in served.home.opens}) == 1
    assert served.home.batches == [3]
    await served.chat(n=2)
    assert not any(opened.sampling.HasField("seed") for opened in served.home.opens[3:])


async def test_a_prompt_counts_once_and_every_answer_counts(served: Served, tokenizer: TextTokenizer) -> None:
    one, two = ([5, 6, 7], [5, 6, 7, 8])
    body = (await served.complete(prompt=[one, two], n=3, best_of=3, max_tokens=50)).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [list(opened.prompt_token_ids) for opened in served.home.opens] == [one] * 3 + [two] * 3
    assert body["usage"]["prompt_tokens"] == len(one) + len(two)
    num_tokens = sum([len(await tokenizer.encode_prompt(text)) for text in TEXTS])
    assert body["usage"]["completion_tokens"] == 2 * num_tokens
    assert [choice["routing"]["tokens"]["slm"] for choice in body["choices"]][:3] == [
        len(await tokenizer.encode_prompt(choice["text"])) for choice in body["choices"]
    ][:3]


async def test_choices_are_interleaved_in_a_stream(served: Served) -> None:
    chunks = events(await served.chat(n=3, stream=True, stream_options={"include_usage": True}))
    *deltas, usage, _ = chunks
    assert usage["choices"] == []
    assert all(len(chunk["choices"]) == 1 for chunk in deltas)
    texts: dict[int, str] = dict.fromkeys(range(3), "")
    seen: dict[int, list[Any]] = {index: [] for index in range(3)}
    order = [chunk["choices"][0]["index"] for chunk in deltas]
    for chunk in deltas:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        seen[choice["index"]].append(choice)
    assert sorted(texts.values()) == sorted(TEXTS)
    for own in seen.values():
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["finish_reason"] for choice in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1]["finish_reason"] == "length"
    body = order[3:]
    assert body != sorted(body), "one choice after the other"
    assert len({chunk["id"] for chunk in deltas}) == 1


async def test_usage_in_every_chunk_for_those_who_ask(served: Served, tokenizer: TextTokenizer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(await served.complete(prompt=[5, 6], stream=True, stream_options=options, max_tokens=50))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == len(await tokenizer.encode_prompt(TEXTS[0]))
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks[:-1]} == {2}


async def test_the_openai_package_reads_several_choices(served: Served) -> None:
    async with served.openai() as client:
        reply = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], n=3)
        assert sorted(str(choice.message.content) for choice in reply.choices) == sorted(TEXTS)


async def test_more_choices_than_there_are_places_are_refused_by_name(serve: Serve) -> None:
    served = await serve(Script([5]), max_running=2, max_waiting=2)
    for fields, field in (
        ({"n": 5}, "n"),
        ({"prompt": ["a", "b", "c"], "n": 2}, "n"),
        ({"prompt": ["a"] * 5}, "prompt"),
    ):
        response = await served.complete(**fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == field
    assert (await served.complete(n=4)).status_code == 200
    refused = await served.complete(n=3, best_of=4)
    assert refused.json()["error"]["param"] == "best_of"


async def test_token_ids_are_returned_to_those_who_ask(served: Served, tokenizer: TextTokenizer) -> None:
    answer = await tokenizer.encode_prompt(TEXTS[0])
    body = (await served.complete(prompt=[5, 6], return_token_ids=True, max_tokens=50)).json()
    assert body["choices"][0]["prompt_token_ids"] == [5, 6]
    assert body["choices"][0]["token_ids"] == answer
    chat = (await served.chat(return_token_ids=True)).json()
    assert chat["prompt_token_ids"] == list(served.home.opens[1].prompt_token_ids)
    assert chat["choices"][0]["token_ids"] == await tokenizer.encode_prompt(TEXTS[1])
    streamed = events(await served.complete(prompt=[5, 6], return_token_ids=True, max_tokens=50, stream=True))
    told = [token_id for chunk in streamed[:-1] for token_id in chunk["choices"][0].get("token_ids", [])]
    assert told == await tokenizer.encode_prompt(TEXTS[2])
    assert streamed[0]["choices"][0]["prompt_token_ids"] == [5, 6]
    chunks = await served.chunks(return_token_ids=True)
    assert chunks[0]["prompt_token_ids"] == list(served.home.opens[3].prompt_token_ids)
    assert [i for c in chunks[:-1] for i in c["choices"][0].get("token_ids", [])] == answer

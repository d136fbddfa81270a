"""C01, C02, C04: characters in several tokens, stop strings, special tokens; streamed or not, the same text."""

import asyncio

import pytest
from allroads.gateway.text.tokenizer import TextTokenizer

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve, finish_reasons, joined

WORLD = "A 世界 👩‍🚀🏳️‍🌈 नमस्ते  two  spaces\n\tend"
IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("tiers", [(0,), (0, 1), (0, 0, 0, 1)])
async def test_characters_arrive_whole_whatever_model_writes_their_bytes(
    serve: Serve, tokenizer: TextTokenizer, group: int, tiers: tuple[int, ...]
) -> None:
    token_ids = await tokenizer.encode_prompt(WORLD)
    assert len(token_ids) > len(WORLD)
    served = await serve(Script(token_ids, tiers=tiers, groups=(group,)))
    chunks = await served.chunks()
    assert joined(chunks) == tokenizer.decode(token_ids) == WORLD
    assert "\N{REPLACEMENT CHARACTER}" not in str(chunks)
    assert (await served.chat()).json()["choices"][0]["message"]["content"] == WORLD


async def pieces(tokenizer: TextTokenizer, *texts: str) -> list[int]:
    return [token_id for text in texts for token_id in await tokenizer.encode_prompt(text)]


@pytest.mark.parametrize(
    "stop",
    [["DEFGHIJ"], "DEFGHIJ", ["XY", "DEFGHIZ", "DEFGHIJ"], ["XY", "ZZ", "KLMN", "DEFGHIJ"]],
)
@pytest.mark.parametrize("groups", [(1,), (3,), (100,)])
async def test_a_stop_string_over_tokens_is_never_shown(
    serve: Serve, tokenizer: TextTokenizer, stop: str | list[str], groups: tuple[int, ...]
) -> None:
    token_ids = await pieces(tokenizer, "ABC", "DEF", "G", "HI", "J", "KLM")
    script = Script(token_ids, tiers=(0, 1), groups=groups, hold=asyncio.Event(), num_before_hold=len(token_ids) - 1)
    served = await serve(script)
    chunks = await served.chunks(stop=stop, stream_options={"include_usage": True})
    assert joined(chunks) == "ABC"
    assert finish_reasons(chunks) == ["stop"]
    await served.home.until(lambda: not served.home.running)
    assert served.home.aborted == [1]
    body = (await served.chat(stop=stop)).json()
    assert body["choices"][0]["message"]["content"] == "ABC"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"] == chunks[-2]["usage"]
    assert body["routing"]["computed_tokens"] is None


async def test_a_near_miss_is_released(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await pieces(tokenizer, "ABC", "DEF", "G", "HI", "J", "KLM")
    served = await serve(Script(token_ids))
    chunks = await served.chunks(stop=["DEFGHIZ", "KLMN"])
    assert joined(chunks) == "ABCDEFGHIJKLM"
    assert finish_reasons(chunks) == ["length"]


@pytest.mark.parametrize("end", [IM_END, END_OF_TEXT])
@pytest.mark.parametrize("tier", [0, 1])
async def test_special_tokens_are_counted_and_not_shown(
    serve: Serve, tokenizer: TextTokenizer, end: str, tier: int
) -> None:
    token_ids = await pieces(tokenizer, "Aya has", IM_START, " 37", end)
    served = await serve(Script(token_ids, tiers=[0] * (len(token_ids) - 1) + [tier], is_stop=True))
    chunks = await served.chunks(stream_options={"include_usage": True})
    assert joined(chunks) == "Aya has 37"
    assert finish_reasons(chunks) == ["stop"]
    assert chunks[-2]["usage"]["completion_tokens"] == len(token_ids)
    body = (await served.chat()).json()
    assert body["choices"][0]["message"]["content"] == "Aya has 37"
    assert body["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("groups", [(1,), (100,)])
async def test_the_text_of_a_stop_token_is_not_shown(
    serve: Serve, tokenizer: TextTokenizer, groups: tuple[int, ...]
) -> None:
    token_ids = await pieces(tokenizer, "7", "8", "9")
    served = await serve(Script(token_ids, groups=groups, is_stop=True))
    chunks = await served.chunks(stop_token_ids=token_ids[-1:])
    assert joined(chunks) == "78"
    assert served.home.opens[0].sampling.stop_token_ids == token_ids[-1:]

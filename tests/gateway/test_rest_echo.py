"""The prompt before its answer, with the large model's log-probabilities, as lm-eval asks for them."""

from typing import Any

import pytest
from allroads.gateway.text.tokenizer import TextTokenizer

from tests.doubles.scripted_home import Script, made_up_logprobs
from tests.gateway.conftest import Serve, Served, events

PROMPT = "Aya has 37 apples"
ANSWER = " and buys more"


@pytest.fixture
async def served(serve: Serve, tokenizer: TextTokenizer) -> Served:
    return await serve(Script(await tokenizer.encode_prompt(ANSWER)))


async def test_the_text_is_shown_first(served: Served, tokenizer: TextTokenizer) -> None:
    ids = await tokenizer.encode_prompt(PROMPT)
    for prompt in (PROMPT, ids):
        body = (await served.complete(prompt=prompt, echo=True, max_tokens=50)).json()
        assert body["choices"][0]["text"] == PROMPT + ANSWER
        assert body["choices"][0]["logprobs"] is None
        assert body["usage"]["prompt_tokens"] == len(ids)
        chunks = events(await served.complete(prompt=prompt, echo=True, max_tokens=50, stream=True))
        assert chunks[0]["choices"][0]["text"] == PROMPT
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == PROMPT + ANSWER
    assert served.home.prompts == []


async def test_no_token_is_written_where_none_is_wanted(served: Served) -> None:
    for stream in (False, True):
        response = await served.complete(prompt=[5, 6, 7], echo=True, max_tokens=0, logprobs=1, stream=stream)
        choice = events(response)[1]["choices"][0] if stream else response.json()["choices"][0]
        assert choice["finish_reason"] == "length"
        assert served.home.opens == []
    body = (await served.complete(prompt=PROMPT, echo=True, max_tokens=0)).json()
    assert body["choices"][0]["text"] == PROMPT
    assert body["usage"]["completion_tokens"] == 0
    assert served.gateway.door.limiter.num_running == 0
    refused = await served.complete(prompt=PROMPT, max_tokens=0)
    assert refused.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("num_logprobs", [0, 1, 3])
async def test_log_probabilities_cover_prompt_and_answer(
    served: Served, tokenizer: TextTokenizer, num_logprobs: int
) -> None:
    """What lm-eval reads: parallel lists over all tokens, null before the first."""
    prompt, answer = await tokenizer.encode_prompt(PROMPT), await tokenizer.encode_prompt(ANSWER)
    fields: dict[str, Any] = {"prompt": [prompt], "echo": True, "logprobs": num_logprobs, "max_tokens": 50}
    block = (await served.complete(**fields)).json()["choices"][0]["logprobs"]
    token_ids = prompt + answer
    assert block["tokens"] == [tokenizer.token_texts[token_id].text for token_id in token_ids]
    wanted = [made_up_logprobs(index, 0, 0).logprob for index in range(1, len(prompt))]
    wanted += [made_up_logprobs(index, 0, 0).logprob for index in range(len(answer))]
    assert block["token_logprobs"] == [None, *wanted]
    assert block["top_logprobs"][0] is None
    assert all(isinstance(top, dict) and top for top in block["top_logprobs"][1:])
    text = PROMPT + ANSWER
    for token, offset in zip(block["tokens"], block["text_offset"], strict=True):
        assert text[offset : offset + len(token)] == token
    (asked,) = served.home.prompts
    assert list(asked.token_ids) == prompt
    assert asked.num_logprobs == num_logprobs
    chunks = events(await served.complete(**fields, stream=True))
    parts = [c["choices"][0]["logprobs"] for c in chunks[:-1] if c["choices"][0]["logprobs"] is not None]
    for key, values in block.items():
        assert [value for part in parts for value in part[key]] == values


async def test_a_prompt_of_one_token_has_nothing_before_it(served: Served) -> None:
    block = (await served.complete(prompt=[5], echo=True, logprobs=1, max_tokens=0)).json()["choices"][0]["logprobs"]
    assert block["token_logprobs"] == [None]
    assert block["top_logprobs"] == [None]


async def test_several_prompts_and_choices_are_echoed_each(served: Served) -> None:
    body = (await served.complete(prompt=["one", "two"], n=2, echo=True, logprobs=0, max_tokens=50)).json()
    texts = [choice["text"] for choice in body["choices"]]
    assert texts == [f"one{ANSWER}", f"one{ANSWER}", f"two{ANSWER}", f"two{ANSWER}"]


async def test_what_is_cut_off_is_not_echoed(served: Served, tokenizer: TextTokenizer) -> None:
    ids = await tokenizer.encode_prompt(PROMPT)
    body = (await served.complete(prompt=PROMPT, echo=True, truncate_prompt_tokens=2, max_tokens=50)).json()
    assert list(served.home.opens[0].prompt_token_ids) == ids[-2:]
    assert body["choices"][0]["text"] == tokenizer.decode(ids[-2:]) + ANSWER
    await served.complete(prompt=[5] * 600, truncate_prompt_tokens=-1, max_tokens=12)
    assert len(served.home.opens[1].prompt_token_ids) == 500


async def test_a_home_that_is_gone_is_told_in_time(served: Served) -> None:
    await served.home.die()
    await served.until_ready(False)
    response = await served.complete(prompt="x", echo=True, logprobs=1, max_tokens=0)
    assert response.status_code == 503
    assert served.gateway.door.limiter.num_running == 0

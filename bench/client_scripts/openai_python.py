"""openai-python, the client that most others are built on."""

import asyncio
import json
from typing import Any

from openai import AsyncOpenAI, BadRequestError, OpenAI

from .checks import CHAT, MODEL, QUESTION, SCHEMA, TOOL, demand, run

MESSAGES: Any = CHAT


def _client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


def chat(url: str) -> None:
    reply = _client(url).chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
    demand("95" in (reply.choices[0].message.content or ""), "the answer is another one")
    demand(reply.choices[0].finish_reason == "stop", "no end")


def usage(url: str) -> None:
    reply = _client(url).chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    demand(reply.usage and reply.usage.completion_tokens == 5, "usage is wrong")


def stream(url: str) -> None:
    chunks = list(
        _client(url).chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    demand("95" in text, "the answer is another one")
    demand(chunks[-1].usage is not None and not chunks[-1].choices, "no usage at the end")


def awaited(url: str) -> None:
    async def ask() -> None:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
            calls = [client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0) for _ in range(4)]
            texts = {reply.choices[0].message.content for reply in await asyncio.gather(*calls)}
            demand(len(texts) == 1, "equal requests have unequal answers")
            parts = await client.completions.create(model=MODEL, prompt=QUESTION, max_tokens=4, stream=True)
            demand([part async for part in parts], "an empty stream")

    asyncio.run(ask())


def completions(url: str) -> None:
    reply = _client(url).completions.create(model=MODEL, prompt=[QUESTION, "Aya"], max_tokens=3)
    demand(len(reply.choices) == 2, "not two choices")


def logprobs(url: str) -> None:
    reply = _client(url).chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=2
    )
    entries = reply.choices[0].logprobs
    demand(entries and entries.content and len(entries.content) == 4, "not an entry for each token")


def several(url: str) -> None:
    reply = _client(url).chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, n=2, seed=1)
    demand([choice.index for choice in reply.choices] == [0, 1], "not two choices")


def structured(url: str) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    reply = _client(url).chat.completions.create(model=MODEL, messages=MESSAGES, response_format=form, max_tokens=64)
    demand("answer" in json.loads(reply.choices[0].message.content or ""), "another form")


def tools(url: str) -> None:
    tool: Any = TOOL
    reply = _client(url).chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[tool], tool_choice="required", max_tokens=64
    )
    demand(reply.choices[0].message.tool_calls, "no call")


def models(url: str) -> None:
    demand([model.id for model in _client(url).models.list()] == [MODEL], "another model")


def errors(url: str) -> None:
    try:
        _client(url).chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
    except BadRequestError as error:
        demand(error.param == "temperature", f"the field is {error.param}")
    else:
        raise AssertionError("no error")


if __name__ == "__main__":
    run(
        {
            "chat": chat, "stream": stream, "async": awaited, "usage": usage, "completions": completions,
            "logprobs": logprobs, "n": several, "structured": structured, "tools": tools, "models": models,
            "errors": errors,
        }
    )  # fmt: skip

"""litellm, as a library and as its proxy calls a backend."""

import asyncio
from typing import Any

import litellm

from .checks import CHAT, MODEL, SCHEMA, TOOL, demand, run


def _options(url: str, **more: Any) -> dict[str, Any]:
    return {
        "model": f"hosted_vllm/{MODEL}", "messages": CHAT, "api_base": f"{url}/v1", "api_key": "unused",
        "temperature": 0, "num_retries": 0, **more,
    }  # fmt: skip


def _ask(url: str, **more: Any) -> Any:
    return litellm.completion(**_options(url, **more))


def chat(url: str) -> None:
    demand("95" in _ask(url).choices[0].message.content, "the answer is another one")


def stream(url: str) -> None:
    text = "".join(chunk.choices[0].delta.content or "" for chunk in _ask(url, stream=True))
    demand("95" in text, "the answer is another one")


def awaited(url: str) -> None:
    async def ask() -> None:
        reply = await litellm.acompletion(**_options(url))
        demand("95" in reply.choices[0].message.content, "the answer is another one")
        parts = await litellm.acompletion(**_options(url, stream=True))
        demand([part async for part in parts], "an empty stream")

    asyncio.run(ask())


def usage(url: str) -> None:
    demand(_ask(url, max_tokens=5).usage.completion_tokens == 5, "usage is wrong")
    chunks = list(_ask(url, max_tokens=5, stream=True, stream_options={"include_usage": True}))
    demand(chunks[-1].usage.completion_tokens == 5, "usage of the stream is wrong")


def completions(url: str) -> None:
    reply = litellm.text_completion(
        model=f"hosted_vllm/{MODEL}", prompt="Aya has", api_base=f"{url}/v1", api_key="unused", max_tokens=3
    )
    demand(reply.usage.completion_tokens == 3, "usage is wrong")


def logprobs(url: str) -> None:
    reply = _ask(url, max_tokens=4, logprobs=True, top_logprobs=2)
    demand(len(reply.choices[0].logprobs.content) == 4, "not an entry for each token")


def structured(url: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    demand("answer" in _ask(url, response_format=form, max_tokens=64).choices[0].message.content, "another form")


def tools(url: str) -> None:
    reply = _ask(url, tools=[TOOL], tool_choice="required", max_tokens=64)
    demand(reply.choices[0].message.tool_calls, "no call")


def errors(url: str) -> None:
    try:
        _ask(url, temperature=9)
    except litellm.BadRequestError as error:
        demand("temperature" in str(error), "the field is not named")
    else:
        raise AssertionError("no error")


if __name__ == "__main__":
    litellm.telemetry = False
    run(
        {
            "chat": chat, "stream": stream, "async": awaited, "usage": usage, "completions": completions,
            "logprobs": logprobs, "structured": structured, "tools": tools, "errors": errors,
        }
    )  # fmt: skip

"""langchain-openai, the way into LangChain and LangGraph."""

import asyncio
from typing import Any

from langchain_openai import ChatOpenAI

from .checks import MODEL, QUESTION, SCHEMA, TOOL, demand, run


def _model(url: str, **more: Any) -> Any:
    return ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="unused", temperature=0, max_retries=0, **more)


def chat(url: str) -> None:
    demand("95" in _model(url).invoke(QUESTION).content, "the answer is another one")


def stream(url: str) -> None:
    demand("95" in "".join(chunk.content for chunk in _model(url).stream(QUESTION)), "the answer is another one")


def awaited(url: str) -> None:
    async def ask() -> None:
        demand("95" in (await _model(url).ainvoke(QUESTION)).content, "the answer is another one")
        text = "".join([chunk.content async for chunk in _model(url).astream(QUESTION)])
        demand("95" in text, "the streamed answer is another one")

    asyncio.run(ask())


def usage(url: str) -> None:
    reply = _model(url, max_tokens=5).invoke(QUESTION)
    demand(reply.usage_metadata["output_tokens"] == 5, "usage is wrong")
    chunks = list(_model(url, max_tokens=5, stream_usage=True).stream(QUESTION))
    counts = [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata]
    demand(sum(counts) == 5, "usage of the stream is wrong")


def logprobs(url: str) -> None:
    reply = _model(url, max_tokens=4).bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    demand(len(reply.response_metadata["logprobs"]["content"]) == 4, "not an entry for each token")


def structured(url: str) -> None:
    form = {"title": "answer", **SCHEMA}
    asking = _model(url, max_tokens=64).with_structured_output(form, method="json_schema")
    demand("answer" in asking.invoke(QUESTION), "another form")


def tools(url: str) -> None:
    reply = _model(url, max_tokens=64).bind_tools([TOOL], tool_choice="any").invoke(QUESTION)
    demand(reply.tool_calls, "no call")


if __name__ == "__main__":
    run(
        {
            "chat": chat, "stream": stream, "async": awaited, "usage": usage, "logprobs": logprobs,
            "structured": structured, "tools": tools,
        }
    )  # fmt: skip

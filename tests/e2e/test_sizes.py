"""Degenerate and extreme sizes over the whole mesh: an answer or a 400, and the next request works (C07, C14, C52)."""

import asyncio
from typing import Any

import httpx
import pytest

from .conftest import WINDOW


async def _complete(http: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await http.post("/v1/completions", json={"model": "allroads", "temperature": 0, **body})


async def _still_serves(http: httpx.AsyncClient) -> None:
    for policy in ("r2r", "llm"):
        reply = await _complete(http, prompt="hi", max_tokens=3, ignore_eos=True, routing={"policy": policy})
        assert reply.status_code == 200
        assert reply.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "", "max_tokens": 5},
        {"prompt": [""]},
        {"prompt": [[]]},
        {"prompt": "hi", "max_tokens": 0},
        {"prompt": "hi", "max_tokens": -1},
        {"prompt": [10**9], "max_tokens": 5},
        {"prompt": [-1], "max_tokens": 5},
    ],
)
async def test_degenerate_bodies_are_refused_by_name(body: dict[str, Any], http: httpx.AsyncClient) -> None:
    reply = await _complete(http, **body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"]
    await _still_serves(http)


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": ""}]])
async def test_degenerate_chats(messages: list[dict[str, str]], http: httpx.AsyncClient) -> None:
    reply = await http.post(
        "/v1/chat/completions", json={"model": "allroads", "messages": messages, "max_tokens": 4, "temperature": 0}
    )
    assert reply.status_code in (200, 400)
    if not messages:
        assert reply.json()["error"]["param"] == "messages"
    await _still_serves(http)


async def test_one_token(http: httpx.AsyncClient) -> None:
    reply = (await _complete(http, prompt="hi", max_tokens=1, ignore_eos=True)).json()
    assert reply["usage"]["completion_tokens"] == 1
    assert reply["choices"][0]["finish_reason"] == "length"


async def test_a_prompt_that_is_only_scored(http: httpx.AsyncClient) -> None:
    reply = await _complete(http, prompt="hi", max_tokens=0, echo=True, logprobs=1)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["text"] == "hi"
    assert reply.json()["usage"]["completion_tokens"] == 0
    await _still_serves(http)


@pytest.mark.parametrize("policy", ["r2r", "llm", "slm"])
@pytest.mark.parametrize("max_tokens", [None, 1, 5000])
async def test_the_smallest_window_rules(policy: str, max_tokens: int | None, http: httpx.AsyncClient) -> None:
    """At the limit the room left is used; over it the numbers are told, and a neighbour is not disturbed."""
    more = {"routing": {"policy": policy}, "ignore_eos": True} | ({"max_tokens": max_tokens} if max_tokens else {})
    neighbour = asyncio.create_task(_complete(http, prompt="hello", max_tokens=200, ignore_eos=True))
    fits = await _complete(http, prompt=[9] * (WINDOW - 1), **more)
    assert fits.status_code == 200
    assert fits.json()["usage"]["completion_tokens"] == 1
    assert fits.json()["choices"][0]["finish_reason"] == "length"
    for length in (WINDOW, WINDOW + 1, 10 * WINDOW):
        refused = await _complete(http, prompt=[9] * length, **more)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert str(length) in error["message"]
        assert str(WINDOW) in error["message"]
    assert (await neighbour).json()["usage"]["completion_tokens"] == 200


@pytest.mark.parametrize("temperature", [0, 1e-8, 2])
async def test_extreme_temperatures(temperature: float, http: httpx.AsyncClient) -> None:
    reply = await _complete(http, prompt="hi", max_tokens=8, temperature=temperature, ignore_eos=True)
    assert reply.status_code == 200
    assert "NaN" not in reply.text

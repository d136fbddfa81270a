"""What a client gets from the whole mesh is what the method defines."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from ..doubles.processes import MeshProcesses
from ..oracle import Answer, Oracle

PROMPTS = [[30 + index, *range(40, 60), 7] for index in range(6)]
THRESHOLD = 0.5


@pytest.fixture(scope="module")
def expected(pair: Path) -> list[Answer]:
    oracle = Oracle(pair)
    return oracle.answer(PROMPTS, oracle.r2r(THRESHOLD), max_tokens=40, stop_token_ids=frozenset({2}))


def _body(prompt: Any, **more: Any) -> dict[str, Any]:
    routing = {"policy": "r2r", "threshold": THRESHOLD, "report_tokens": True}
    return {"model": "allroads", "prompt": prompt, "max_tokens": 40, "temperature": 0, "routing": routing, **more}


async def test_the_large_model_writes_what_the_classifier_sends_it(
    http: httpx.AsyncClient, expected: list[Answer]
) -> None:
    assert {tier for answer in expected for tier in answer.tiers} == {0, 1}
    for prompt, answer in zip(PROMPTS, expected, strict=True):
        if answer.margin < 2e-4:
            continue
        reply = (await http.post("/v1/completions", json=_body(prompt))).json()
        assert reply["routing"]["token_ids"] == answer.token_ids
        assert reply["routing"]["tiers"] == answer.tiers
        assert reply["routing"]["tokens"] == {"slm": answer.tiers.count(0), "llm": answer.tiers.count(1)}
        assert reply["usage"]["completion_tokens"] == len(answer.token_ids)


async def test_a_streamed_answer_is_the_same(openai: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    for prompt in PROMPTS[:3]:
        whole = (await http.post("/v1/completions", json=_body(prompt))).json()
        text = ""
        tiers: list[int] = []
        stream = await openai.completions.create(
            model="allroads", prompt=prompt, max_tokens=40, temperature=0, stream=True,
            extra_body={"routing": _body(prompt)["routing"]},
        )  # fmt: skip
        async for chunk in stream:
            text += chunk.choices[0].text
            tiers += chunk.model_extra["routing"].get("tiers", []) if chunk.model_extra else []
        assert text == whole["choices"][0]["text"]
        assert tiers == whole["routing"]["tiers"]


async def test_a_chat_over_every_policy(openai: AsyncOpenAI) -> None:
    for routing in (
        {"policy": "slm"},
        {"policy": "llm"},
        {"policy": "entropy", "threshold": 2.0},
        {"policy": "random", "share": 0.5},
        {},
    ):
        reply = await openai.chat.completions.create(
            model="allroads",
            messages=[{"role": "user", "content": "How many?"}],
            max_completion_tokens=12,
            seed=3,
            extra_body={"routing": routing, "ignore_eos": True},
        )
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 12
        assert reply.choices[0].finish_reason == "length"
        block = (reply.model_extra or {})["routing"]
        assert block["policy"] == routing.get("policy", "r2r")
        assert sum(block["tokens"].values()) == 12


async def test_the_small_models_death_is_not_seen_by_its_clients(mesh: MeshProcesses, http: httpx.AsyncClient) -> None:
    body = _body(PROMPTS[0], max_tokens=900, ignore_eos=True)
    undisturbed = (await http.post("/v1/completions", json=body)).json()
    text = b""
    async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
        async for line in reply.aiter_lines():
            if not text:
                mesh.kill("slm")
                mesh.start("slm")
            text += line.encode() + b"\n"
    assert b'"error"' not in text
    parts = [part.split(b"]")[0] for part in text.split(b'"token_ids":[')[1:]]
    token_ids = [int(token) for part in parts for token in part.split(b",") if token]
    assert token_ids == undisturbed["routing"]["token_ids"]
    assert text.rstrip().endswith(b"[DONE]")

"""The router's score at each token says who wrote it, whoever else is served in the same steps."""

import asyncio
from statistics import median
from typing import Any

import httpx

PROMPTS = [[30 + index, *range(40, 60), 7] for index in range(4)]


async def _ask(http: httpx.AsyncClient, prompt: list[int], *, asks: bool = True, **routing: Any) -> dict[str, Any]:
    routing = {"policy": "r2r", "report_tokens": True, **({"report_scores": True} if asks else {}), **routing}
    body = {"model": "allroads", "prompt": prompt, "max_tokens": 48, "temperature": 0, "routing": routing}
    reply = await http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json()["routing"]
    return told


async def test_a_score_at_or_above_the_threshold_is_a_token_of_the_large_model(http: httpx.AsyncClient) -> None:
    everything = await _ask(http, PROMPTS[0], threshold=0)
    threshold = median(everything["scores"])
    tellers, others = await asyncio.gather(
        asyncio.gather(*(_ask(http, prompt, threshold=threshold) for prompt in PROMPTS)),
        asyncio.gather(*(_ask(http, prompt, asks=False, threshold=threshold) for prompt in PROMPTS)),
    )
    assert {tier for told in tellers for tier in told["tiers"]} == {0, 1}
    for told, other in zip(tellers, others, strict=True):
        assert told["tiers"] == [int(score >= threshold) for score in told["scores"]]
        assert "scores" not in other
        assert other["token_ids"] == told["token_ids"]


async def test_an_audit_tells_scores_and_acts_on_none(http: httpx.AsyncClient) -> None:
    told = await _ask(http, PROMPTS[0], threshold=1, mode="audit")
    # The large model writes, whatever the policy would have done.
    assert set(told["tiers"]) == {1}
    assert all(0 <= score <= 1 for score in told["scores"])


async def test_a_policy_without_a_scorer_tells_none(http: httpx.AsyncClient) -> None:
    told = await _ask(http, PROMPTS[0], policy="random", share=0.5)
    assert set(told["scores"]) == {None}
    assert len(told["scores"]) == len(told["tiers"])

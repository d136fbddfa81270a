"""Several answers to a prompt, and a prompt with the large model's log-probabilities, over the whole mesh."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

PROMPT = [5 + index * 11 % 300 for index in range(200)]


async def _complete(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    reply = await http.post("/v1/completions", json={"model": "allroads", "ignore_eos": True, **body})
    assert reply.status_code == 200, reply.text
    content: dict[str, Any] = reply.json()
    return content


def _texts(body: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in body["choices"]]


@pytest.mark.parametrize("policy", ["r2r", "llm", "slm"])
async def test_choices_are_what_each_would_be_alone(policy: str, http: httpx.AsyncClient) -> None:
    more: dict[str, Any] = {"prompt": PROMPT[:20], "max_tokens": 12, "routing": {"policy": policy}}
    greedy = _texts(await _complete(http, n=3, temperature=0, **more))
    assert len(set(greedy)) == 1
    sampled = _texts(await _complete(http, n=3, temperature=1, seed=7, **more))
    alone = [_texts(await _complete(http, temperature=1, seed=7 + index, **more))[0] for index in range(3)]
    assert sampled == alone
    assert len(set(sampled)) == 3


async def test_a_prompt_is_scored_by_the_large_model(pair: Path, http: httpx.AsyncClient) -> None:
    """As lm-eval asks for it; whatever an earlier request has left in the pools, and whoever writes the answer."""
    model = AutoModelForCausalLM.from_pretrained(pair / "llm", dtype=torch.float32).eval()
    with torch.inference_mode():
        wanted = torch.as_tensor(model(torch.tensor([PROMPT]), use_cache=False).logits[0]).log_softmax(-1)
    of_prompt = [float(wanted[index, token_id]) for index, token_id in enumerate(PROMPT[1:])]
    await _complete(http, prompt=PROMPT, max_tokens=2)
    for policy in ("slm", "llm"):
        routing = {"policy": policy}
        for max_tokens in (0, 1):
            body = await _complete(http, prompt=PROMPT, echo=True, logprobs=1, max_tokens=max_tokens, routing=routing)
            block = body["choices"][0]["logprobs"]
            assert block["token_logprobs"][0] is None
            assert block["token_logprobs"][1 : len(PROMPT)] == pytest.approx(of_prompt, abs=1e-3)
            assert len(block["token_logprobs"]) == len(PROMPT) + max_tokens
            assert body["usage"]["completion_tokens"] == max_tokens
            top = block["top_logprobs"][1 : len(PROMPT)]
            best = [float(value) for value in wanted[:-1].max(dim=-1).values]
            assert [max(entry.values()) for entry in top] == pytest.approx(best, abs=1e-3)

"""The REST API of a mesh as evaluation sees it, whose answers are a pure function of problem and routing.

Problem number n is right from the small model if n is even, always from the large one, and from a router if n is not
a multiple of 5. Each answer has ten tokens.
"""

import json
from collections.abc import Callable
from typing import Any

import httpx

NUM_TOKENS = 10
PARAMETERS = (1_000_000_000, 10_000_000_000)
_THRESHOLD = {"name": "threshold", "summary": "", "minimum": 0.0, "maximum": 1.0, "whole": False, "per_tier": False}


class RestMesh:
    """Answers by a script; `words` may change the text of one."""

    def __init__(self, words: Callable[[str], str] = lambda text: text) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.fail_after: int | None = None
        """Requests for answers after which the mesh is gone."""
        self._words = words

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._handle)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [_card()]})
        body = json.loads(request.content)
        if self.fail_after is not None and len(self.bodies) >= self.fail_after:
            return httpx.Response(400, json={"error": {"message": "gone", "param": None, "code": None}})
        self.bodies.append(body)
        return httpx.Response(200, json=self._reply(body))

    def _reply(self, body: dict[str, Any]) -> dict[str, Any]:
        routing = body["routing"]
        number = int(body["messages"][-1]["content"].split()[-1])
        num_llm = _num_llm(routing)
        tiers = [1] * num_llm + [0] * (NUM_TOKENS - num_llm)
        right = {"slm": number % 2 == 0, "llm": True, "random": number % 2 == 0}.get(routing["policy"], number % 5 != 0)
        text = self._words(f"It is {number if right else -1}")
        entry = {"token": "x", "logprob": -0.1 if number % 2 == 0 else -1.0, "bytes": list(b"x"), "top_logprobs": []}
        return {
            "choices": [
                {
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                    "logprobs": {"content": [entry | {"bytes": list(text.encode())}, *[entry] * 9]}
                    if body.get("logprobs")
                    else None,
                }
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": NUM_TOKENS},
            "routing": {
                "policy": routing["policy"],
                "tokens": {"slm": NUM_TOKENS - num_llm, "llm": num_llm},
                "computed_tokens": [0 if num_llm == NUM_TOKENS else 15, 15 if num_llm else 0],
                "scored_tokens": NUM_TOKENS if routing["policy"] == "r2r" else 0,
                "rejected_tokens": num_llm if routing["policy"] == "r2r" else 0,
                "drafts": {"judged": 0, "accepted": 0},
                "hand_offs": num_llm,
                "degraded": False,
                "token_ids": list(range(NUM_TOKENS)),
                "tiers": tiers,
            },
        }


def _num_llm(routing: dict[str, Any]) -> int:
    if routing["policy"] == "random":
        return round(NUM_TOKENS * float(routing["share"]))
    if routing["policy"] == "r2r":
        return round(NUM_TOKENS * (1 - float(routing.get("threshold", 0.8))))
    return NUM_TOKENS if routing["policy"] == "llm" else 0


def _card() -> dict[str, Any]:
    def policy(name: str, *parameters: dict[str, Any], scorer: str | None = None) -> dict[str, Any]:
        return {"name": name, "summary": "", "scorer": scorer, "parameters": list(parameters)}

    return {
        "id": "pair",
        "allroads": {
            "tiers": [
                {"name": name, "model": f"model-{name}", "num_parameters": count}
                for name, count in zip(("slm", "llm"), PARAMETERS, strict=True)
            ],
            "default_policy": "r2r",
            "policies": [
                policy("r2r", _THRESHOLD | {"default": 0.8}, scorer="r2r"),
                policy("random", _THRESHOLD | {"name": "share", "default": None}),
                policy("slm"),
                policy("llm"),
            ],
        },
    }

"""Far more requests at once than there are places: `python -m bench.overload`.

First, 2,000 requests with 32 tokens at once against 64 places and the usual line: what came of them, how soon
the refused ones knew (from when a request was written to its connection to the first byte of its answer; `each_ms`
is the time from the first request to the last refusal, over their number), and the gateway's memory. Then a mesh
that promises each request twice the speed that requests had without a promise, with 128 tokens each, so many that
most must wait: the share of them that got it. The first ones, by which the model is fitted, are left out.
"""

import asyncio
import json
import statistics
from typing import Any

import httpx
import psutil

from .burst import Answer, burst
from .mesh import MODEL, Mesh, running_mesh
from .report import arguments, finish, show

MAX_TOKENS, PROMISED_TOKENS = 32, 128
SETTINGS = {"ALLROADS_GATEWAY__QUEUE_TIMEOUT_S": "600"}
_MIB = 2**20


def _bodies(count: int, max_tokens: int) -> list[bytes]:
    return [
        json.dumps(
            {
                "model": MODEL,
                "prompt": [10 + number % 400, *([5 + number % 7] * 12)],
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                "routing": {"policy": "r2r"},
            }
        ).encode()
        for number in range(count)
    ]


def _gateway(mesh: Mesh) -> psutil.Process:
    """The gateway's process among those of a mesh."""
    processes = psutil.Process(mesh.pid).children(recursive=True)
    return next(process for process in processes if "gateway" in process.cmdline())


def _port(mesh: Mesh) -> int:
    port = mesh.client.base_url.port
    assert port is not None
    return port


def _quantiles_ms(values: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * value for value in values)
    return {f"p{percent}_ms": ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in (50, 99)} | {
        "max_ms": ordered[-1]
    }


def _speeds(answers: list[Answer]) -> list[float]:
    """Tokens a second of each answer, from its first token to its end."""
    return [(answer.num_tokens - 1) / (answer.end_s - answer.token_s) for answer in answers]


async def overload(num_requests: int, places: int) -> dict[str, Any]:
    """The first part."""
    environment = SETTINGS | {"ALLROADS_GATEWAY__MAX_RUNNING": str(places)}
    async with running_mesh(**environment) as mesh:
        await asyncio.to_thread(burst, _port(mesh), _bodies(places, MAX_TOKENS))
        gateway = _gateway(mesh)
        before = peak = gateway.memory_info().rss

        def sample() -> None:
            nonlocal peak
            peak = max(peak, gateway.memory_info().rss)

        answers = await asyncio.to_thread(burst, _port(mesh), _bodies(num_requests, MAX_TOKENS), sample)
        after = gateway.memory_info().rss
    accepted = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status == 429]
    span_s = max(answer.first_s for answer in refused) - min(answer.sent_s for answer in answers)
    return {
        "requests": num_requests,
        "places": places,
        "accepted": len(accepted),
        "finished": sum(answer.num_tokens == MAX_TOKENS and b"[DONE]" in answer.data for answer in accepted),
        "refused": len(refused),
        "refused_with_retry_after": sum(answer.has_retry_after for answer in refused),
        "refusal": _quantiles_ms([answer.first_s - answer.sent_s for answer in refused])
        | {"each_ms": 1000 * span_s / len(refused)},
        "gateway_mib": {"before": before / _MIB, "peak": peak / _MIB, "after": after / _MIB},
        "tokens_per_s_each": statistics.median(_speeds(accepted[:places])),
    }


async def promised(places: int, promise: float) -> dict[str, Any]:
    """The second part."""
    environment = SETTINGS | {
        "ALLROADS_GATEWAY__MAX_RUNNING": str(places),
        "ALLROADS_GATEWAY__ADMISSION__MIN_TOKENS_PER_S": str(promise),
    }
    async with running_mesh(**environment) as mesh:
        await asyncio.to_thread(burst, _port(mesh), _bodies(2 * places, PROMISED_TOKENS))
        answers = await asyncio.to_thread(burst, _port(mesh), _bodies(4 * places, PROMISED_TOKENS))
        limit = await _limit(mesh.client)
    speeds = _speeds([answer for answer in answers if answer.status == 200])
    return {
        "promised_tokens_per_s": promise,
        "limit_at_the_end": limit,
        "accepted": len(speeds),
        "share_that_got_it": sum(speed >= promise for speed in speeds) / len(speeds),
        "share_that_got_90_percent": sum(speed >= 0.9 * promise for speed in speeds) / len(speeds),
        "tokens_per_s": {"lowest": min(speeds), "median": statistics.median(speeds)},
    }


async def _limit(client: httpx.AsyncClient) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("allroads_admission_limit "))


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    num_requests, places = (400, 16) if options.quick else (2000, 64)
    first = asyncio.run(overload(num_requests, places))
    second = asyncio.run(promised(places, 2 * first["tokens_per_s_each"]))
    for title, result in (("overload", first), ("promise", second)):
        flat = {
            f"{name} {part}".strip(): value
            for name, values in result.items()
            for part, value in (values.items() if isinstance(values, dict) else [("", values)])
        }
        show(title, ("what", "value"), list(flat.items()))
    finish({"overload": first, "promise": second}, as_json=options.json)


if __name__ == "__main__":
    main()

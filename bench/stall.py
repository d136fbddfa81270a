"""What a long prompt does to others: `python -m bench.stall`.

One request is being written (policy r2r, streamed) and short ones of about 20 tokens come every 100 ms; then
the same while prompts of 90 % of the context are computed one after the other. Printed are the short ones'
time to their first token and the gaps between the running one's tokens, and the multiples of the unloaded
values. Tokens of a piece that come together count as gaps of 0, so high quantiles are of pieces.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from .mesh import MODEL, Mesh, running_mesh
from .report import arguments, finish, show

CONTEXT = 2048
NUM_SHORT = 20


@dataclass
class Seen:
    """What clients saw, seconds."""

    first_tokens: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def quantiles_ms(self) -> dict[str, float]:
        """Medians and 95th percentiles."""
        return {
            f"{name}_p{percent}_ms": 1000 * sorted(values)[min(len(values) - 1, len(values) * percent // 100)]
            for name, values in (("first_token", self.first_tokens), ("gap", self.gaps))
            for percent in (50, 95)
        }


async def measure(mesh: Mesh, *, is_loaded: bool) -> Seen:
    """One round: a request that is written all the while, short ones, and perhaps long prompts."""
    seen = Seen()
    writer = asyncio.create_task(_write(mesh, seen))
    await asyncio.sleep(0.3)
    loader = asyncio.create_task(_load(mesh)) if is_loaded else None
    shorts = []
    for number in range(NUM_SHORT):
        shorts.append(asyncio.create_task(_first_token(mesh, seen, number)))
        await asyncio.sleep(0.1)
    await asyncio.gather(*shorts)
    for task in (writer, loader):
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return seen


async def _write(mesh: Mesh, seen: Seen) -> None:
    last_s = None
    body = _body([5, 6, 7, 8], max_tokens=1900, policy="r2r", ignore_eos=True, stream=True)
    async with mesh.client.stream("POST", "/v1/completions", json=body) as reply:
        async for line in reply.aiter_lines():
            if '"text":' in line:
                now_s = time.perf_counter()
                if last_s is not None:
                    seen.gaps.append(now_s - last_s)
                last_s = now_s


async def _load(mesh: Mesh) -> None:
    for number in range(1000):
        # Each begins with a token of its own, so that no KV is shared.
        prompt = [10 + number % 400, *([5 + number % 7] * int(0.9 * CONTEXT))]
        reply = await mesh.client.post("/v1/completions", json=_body(prompt, max_tokens=1, policy="llm"))
        reply.raise_for_status()


async def _first_token(mesh: Mesh, seen: Seen, number: int) -> None:
    body = _body([20 + number] * 20, max_tokens=1, policy="r2r", ignore_eos=True)
    started = time.perf_counter()
    reply = await mesh.client.post("/v1/completions", json=body)
    reply.raise_for_status()
    seen.first_tokens.append(time.perf_counter() - started)


def _body(prompt: list[int], *, max_tokens: int, policy: str, **more: Any) -> dict[str, Any]:
    routing = {"policy": policy}
    return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "routing": routing, **more}


async def both(budget: int) -> dict[str, dict[str, float]]:
    """Unloaded and loaded in one mesh with so large a token budget a step, and the multiples."""
    environment = {f"ALLROADS_{name}__MAX_STEP_TOKENS": str(budget) for name in ("SLM", "LLM")}
    async with running_mesh(**environment) as mesh:
        await measure(mesh, is_loaded=False)
        unloaded = (await measure(mesh, is_loaded=False)).quantiles_ms()
        loaded = (await measure(mesh, is_loaded=True)).quantiles_ms()
    multiples = {name.removesuffix("_ms"): loaded[name] / unloaded[name] for name in loaded}
    return {"unloaded": unloaded, "loaded": loaded, "multiple": multiples}


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    budgets = (128, 512) if options.quick else (64, 128, 256, 512)
    results = {budget: asyncio.run(both(budget)) for budget in budgets}
    columns = tuple(results[budgets[0]]["multiple"])
    rows = [
        (f"{budget} {kind}", *result[kind].values())
        for budget, result in results.items()
        for kind in ("unloaded", "loaded", "multiple")
    ]
    show("by token budget of a step; ms and multiples", ("budget", *columns), rows)
    finish({"stall": results}, as_json=options.json)


if __name__ == "__main__":
    main()

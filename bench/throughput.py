"""Tokens per second of the mesh at several concurrencies, and of a research-style loop in the same run.

`python -m bench.throughput`. A closed system: so many clients, each asks its next held-out problem as soon
as the last is answered. Greedy, answers end where the model ends them. `r2r_streamed` is `r2r` with every
client reading an event stream. Clients run on the same cores as the mesh.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

import torch
from allroads.config import load_settings
from allroads.training.pretrain import prompt_ids
from allroads.training.problems import Problem, problems
from transformers import PreTrainedTokenizerFast

from .mesh import Mesh, running_mesh
from .report import arguments, finish, show
from .research_loop import ResearchLoop

CONCURRENCIES = (1, 4, 8, 16)
SYSTEMS = ("llm", "slm", "r2r")
Ask = Callable[[str], Awaitable[int]]


async def tokens_per_second(ask: Ask, sample: list[Problem], concurrency: int) -> float:
    """Committed tokens over the time from the first question to the last answer."""
    waiting = iter(sample)

    async def client() -> int:
        return sum([await ask(problem.question) for problem in waiting])

    started = time.perf_counter()
    counts = await asyncio.gather(*(client() for _ in range(concurrency)))
    return sum(counts) / (time.perf_counter() - started)


def _whole(mesh: Mesh, policy: str) -> Ask:
    async def ask(question: str) -> int:
        reply = await mesh.chat(question, {"policy": policy})
        return int(reply["usage"]["completion_tokens"])

    return ask


def _streamed(mesh: Mesh, policy: str) -> Ask:
    return lambda question: mesh.chat_streamed(question, {"policy": policy})


async def measure_mesh(sample: list[Problem], per_client: int) -> dict[str, dict[int, float]]:
    """Every system at every concurrency, in one mesh."""
    result: dict[str, dict[int, float]] = {}
    async with running_mesh() as mesh:
        asks = {name: _whole(mesh, name) for name in SYSTEMS} | {"r2r_streamed": _streamed(mesh, "r2r")}
        for name, ask in asks.items():
            await tokens_per_second(ask, sample[:8], 8)
            result[name] = {
                concurrency: await tokens_per_second(ask, sample[: max(8, per_client * concurrency)], concurrency)
                for concurrency in CONCURRENCIES
            }
    return result


def measure_loop(sample: list[Problem]) -> float:
    """The loop takes one request at a time, so more clients change nothing but their waiting."""
    settings = load_settings()
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(settings.slm.path)
    loop = ResearchLoop(settings)
    prompts = [prompt_ids(tokenizer, problem.question) for problem in sample]
    loop.answer(prompts[0], max_tokens=16, eos_token_id=tokenizer.eos_token_id)
    started = time.perf_counter()
    count = sum(len(loop.answer(p, max_tokens=256, eos_token_id=tokenizer.eos_token_id)[0]) for p in prompts)
    return count / (time.perf_counter() - started)


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    per_client = 2 if options.quick else 8
    sample = list(islice(problems("test", 0), max(8, per_client * max(CONCURRENCIES))))
    systems: dict[str, Any] = asyncio.run(measure_mesh(sample, per_client))
    loop = measure_loop(sample[: 8 if options.quick else 24])
    systems["research_loop"] = dict.fromkeys(CONCURRENCIES, loop)
    rows = [(name, *(by[c] for c in CONCURRENCIES)) for name, by in systems.items()]
    show("tokens/s", ("system", *(f"{c} requests" for c in CONCURRENCIES)), rows)
    ratios = {
        "r2r_over_llm": {c: systems["r2r"][c] / systems["llm"][c] for c in CONCURRENCIES},
        "r2r_over_loop": {c: systems["r2r"][c] / loop for c in CONCURRENCIES},
        "streamed_over_whole": {c: systems["r2r_streamed"][c] / systems["r2r"][c] for c in CONCURRENCIES},
    }
    show("ratios", ("ratio", *(f"{c} requests" for c in CONCURRENCIES)), [(n, *r.values()) for n, r in ratios.items()])
    finish({"tokens_per_s": systems, "ratios": ratios}, as_json=options.json)


if __name__ == "__main__":
    main()

"""What the mesh costs over one process, and what its ways to save waiting are worth: `python -m bench.overhead`.

`mesh` is `allroads up`: four processes, REST in front. `one_process` is our engine called directly in one
thread (`bench.one_process`), with one torch thread or with one a core, whichever is faster: no messages, no
HTTP, no tokenizer. `single_process` is `allroads up --single-process`. The others are the mesh with one
setting changed. Policy r2r, greedy, a closed system of so many clients on the same cores. All systems are up
at once and take turns, so that a slow minute of the machine hits all alike; printed are medians of rounds.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any

import torch
from allroads.config import load_settings
from allroads.training.pretrain import prompt_ids
from allroads.training.problems import Problem, problems
from transformers import PreTrainedTokenizerFast

from .mesh import Mesh, running_mesh
from .one_process import OneProcess
from .report import arguments, finish, show
from .throughput import tokens_per_second

CONCURRENCIES = (1, 4, 8, 16)
MAX_TOKENS = 256
VARIANTS: dict[str, dict[str, str]] = {
    "mesh": {},
    "verdicts_waited_for": {"ALLROADS_SLM__MAX_UNJUDGED": "0"},
    "hand_offs_waited_for": {"ALLROADS_SLM__MAX_AHEAD": "0"},
    "both_waited_for": {"ALLROADS_SLM__MAX_UNJUDGED": "0", "ALLROADS_SLM__MAX_AHEAD": "0"},
    "no_catch_up": {"ALLROADS_LLM__CATCH_UP": "off"},
    "eager_catch_up": {"ALLROADS_LLM__CATCH_UP": "eager"},
    "no_opinions": {"ALLROADS_LLM__OPINIONS": "false"},
}
"""The mesh's settings, each with one thing changed."""


Run = Callable[[int], Awaitable[float]]
"""Tokens/s of a system at a concurrency."""


def _mesh_run(mesh: Mesh, sample: list[Problem], per_client: int) -> Run:
    async def ask(question: str) -> int:
        reply = await mesh.chat(question, {"policy": "r2r"}, max_tokens=MAX_TOKENS)
        return int(reply["usage"]["completion_tokens"])

    return lambda concurrency: tokens_per_second(ask, _part(sample, per_client, concurrency), concurrency)


def _one_process_run(sample: list[Problem], per_client: int) -> Run:
    settings = load_settings()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(settings.slm.path)
    loop = OneProcess(settings)
    prompts = [prompt_ids(tokenizer, problem.question) for problem in sample]

    async def run(concurrency: int) -> float:
        part = prompts[: len(_part(sample, per_client, concurrency))]
        speeds = []
        for num_threads in sorted({1, os.cpu_count() or 1}):
            torch.set_num_threads(num_threads)
            started = time.perf_counter()
            answers = loop.answer(part, concurrency=concurrency, max_tokens=MAX_TOKENS)
            speeds.append(sum(map(len, answers)) / (time.perf_counter() - started))
        return max(speeds)

    return run


async def measure(names: Sequence[str], per_client: int, rounds: int) -> dict[str, dict[int, float]]:
    """Median tokens/s of each system at each concurrency."""
    sample = list(islice(problems("test", 0), per_client * max(CONCURRENCIES)))
    async with AsyncExitStack() as stack:
        runs = {"one_process": _one_process_run(sample, per_client)}
        for name in names:
            mesh = await stack.enter_async_context(running_mesh(**VARIANTS[name]))
            runs[name] = _mesh_run(mesh, sample, per_client)
        mesh = await stack.enter_async_context(running_mesh("--single-process"))
        runs["single_process"] = _mesh_run(mesh, sample, per_client)
        for run in runs.values():
            await run(8)
        speeds: dict[str, dict[int, list[float]]] = {name: {c: [] for c in CONCURRENCIES} for name in runs}
        for _ in range(rounds):
            for concurrency in CONCURRENCIES:
                for name, run in runs.items():
                    speeds[name][concurrency].append(await run(concurrency))
    return {name: {c: statistics.median(values) for c, values in by.items()} for name, by in speeds.items()}


def _part(sample: list[Problem], per_client: int, concurrency: int) -> list[Problem]:
    return sample[: max(8, per_client * concurrency)]


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    per_client, rounds = (2, 1) if options.quick else (6, 5)
    names = ("mesh", "verdicts_waited_for", "hand_offs_waited_for") if options.quick else tuple(VARIANTS)
    speeds: dict[str, Any] = asyncio.run(measure(names, per_client, rounds))
    columns = tuple(f"{c} requests" for c in CONCURRENCIES)
    show("tokens/s, r2r", ("system", *columns), [(name, *by.values()) for name, by in speeds.items()])
    ratios = {
        f"mesh_over_{name}": {c: speeds["mesh"][c] / by[c] for c in CONCURRENCIES}
        for name, by in speeds.items()
        if name != "mesh"
    }
    show("ratios", ("ratio", *columns), [(name, *by.values()) for name, by in ratios.items()])
    result = {
        "tokens_per_s": speeds,
        "ratios": ratios,
        "mesh_over_one_process": ratios["mesh_over_one_process"][8],
        "lag_on_over_off": ratios["mesh_over_verdicts_waited_for"],
        "suffix_kept_on_over_off": ratios["mesh_over_hand_offs_waited_for"],
    }
    finish(result, as_json=options.json)


if __name__ == "__main__":
    main()

"""What the mesh costs over one process, and what its ways to save waiting are worth: `python -m bench.overhead`.

`mesh` is `allroads up`: four processes, REST in front. `one_process` is our engine called directly in one
thread (`bench.one_process`), with one torch thread or with one a core, whichever is faster: no messages, no
HTTP, no tokenizer. `single_process` is `allroads up --single-process`. The others are the mesh with one
setting changed. Policy r2r, greedy, a closed system of so many clients on the same cores.
"""

import asyncio
import os
import time
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


async def measure(
    sample: list[Problem], per_client: int, rounds: int, options: tuple[str, ...], environment: dict[str, str]
) -> dict[int, float]:
    """Tokens/s of a mesh at each concurrency: the median of so many rounds."""

    async def ask(question: str) -> int:
        reply = await mesh.chat(question, {"policy": "r2r"}, max_tokens=MAX_TOKENS)
        return int(reply["usage"]["completion_tokens"])

    async with running_mesh(*options, **environment) as mesh:
        await tokens_per_second(ask, sample[:8], 8)
        return {
            concurrency: sorted(
                [
                    await tokens_per_second(ask, _part(sample, per_client, concurrency), concurrency)
                    for _ in range(rounds)
                ]
            )[rounds // 2]
            for concurrency in CONCURRENCIES
        }


def measure_one_process(sample: list[Problem], per_client: int, rounds: int) -> dict[int, float]:
    """The same without a mesh: the better of one torch thread and one a core."""
    settings = load_settings()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(settings.slm.path)
    best = dict.fromkeys(CONCURRENCIES, 0.0)
    for num_threads in sorted({1, os.cpu_count() or 1}):
        loop = OneProcess(settings, num_threads=num_threads)
        torch.set_num_threads(num_threads)
        prompts = [prompt_ids(tokenizer, problem.question) for problem in sample]
        loop.answer(prompts[:8], concurrency=8, max_tokens=MAX_TOKENS)
        for concurrency in CONCURRENCIES:
            part = prompts[: len(_part(sample, per_client, concurrency))]
            speeds = []
            for _ in range(rounds):
                started = time.perf_counter()
                answers = loop.answer(part, concurrency=concurrency, max_tokens=MAX_TOKENS)
                speeds.append(sum(map(len, answers)) / (time.perf_counter() - started))
            best[concurrency] = max(best[concurrency], sorted(speeds)[rounds // 2])
    return best


def _part(sample: list[Problem], per_client: int, concurrency: int) -> list[Problem]:
    return sample[: max(8, per_client * concurrency)]


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    per_client, rounds = (2, 1) if options.quick else (8, 3)
    sample = list(islice(problems("test", 0), per_client * max(CONCURRENCIES)))
    speeds: dict[str, Any] = {"one_process": measure_one_process(sample, per_client, rounds)}
    names = ("mesh", "verdicts_waited_for", "hand_offs_waited_for") if options.quick else tuple(VARIANTS)
    for name in names:
        speeds[name] = asyncio.run(measure(sample, per_client, rounds, (), VARIANTS[name]))
    speeds["single_process"] = asyncio.run(measure(sample, per_client, rounds, ("--single-process",), {}))
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

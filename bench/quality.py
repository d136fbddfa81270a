"""Accuracy, LLM share and cost of each policy on held-out problems, through a real mesh.

`python -m bench.quality`: 200 held-out problems. Cost follows arXiv 2505.21600 (output tokens x average
activated parameters, in billions) by two formulas: the published one counts the parameters of the model
that wrote each token; the full one counts every token position that any model computed, prompts, dropped
proposals and catch-up included, and every proposal that the router scored.
"""

import asyncio
from itertools import islice
from typing import Any

from allroads.config import load_settings
from allroads.evaluation.cost import ParameterCounts, Work, full_cost, published_cost
from allroads.model_identity import identify_model
from allroads.router.checkpoint import load_router
from allroads.training.problems import Problem, problems

from .answers import account
from .mesh import Mesh, running_mesh
from .report import arguments, finish, show

NUM_PROBLEMS = 200
ENTROPY_SWEEP = (2.0, 1.6, 1.3, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.3, 0.2, 0.1)
MARGIN = 0.02
"""Accuracy below the LLM's that still counts as the LLM's."""


async def measure(mesh: Mesh, sample: list[Problem], routing: dict[str, Any], size: ParameterCounts) -> dict[str, Any]:
    """Accuracy, share and cost of one routing rule."""
    gate = asyncio.Semaphore(16)

    async def ask(index: int, problem: Problem) -> dict[str, Any]:
        async with gate:
            return await mesh.chat(problem.question, routing, seed=index)

    replies = await asyncio.gather(*(ask(index, problem) for index, problem in enumerate(sample)))
    sums = account(replies, sample)
    work = Work(tuple(sums.tokens.values()), sums.computed, sums.num_scored)
    count = sums.num_answers
    return {
        "accuracy": sums.num_right / count,
        "llm_share": sums.llm_share,
        "cost": {
            "published_per_answer": published_cost(work, size) / count,
            "full_per_answer": full_cost(work, size) / count,
        },
        "tokens_per_answer": sums.num_tokens / count,
        "routing": routing,
    }


async def run(num_problems: int, *, quick: bool) -> dict[str, Any]:
    """All policies in one mesh."""
    settings = load_settings()
    size = ParameterCounts(
        tuple(identify_model(tier.path).num_parameters for tier in settings.tiers.values()),
        load_router(settings.router.path, settings.slm.path).classifier.num_parameters,
    )
    sample = list(islice(problems("test", 0), num_problems))
    counts = {**dict(zip(settings.tiers, size.tiers, strict=True)), "router": size.router}
    result: dict[str, Any] = {"num_problems": num_problems, "parameters": counts}
    async with running_mesh() as mesh:
        for policy in ("slm", "llm", "r2r"):
            result[policy] = await measure(mesh, sample, {"policy": policy}, size)
        share = result["r2r"]["llm_share"]
        result["random"] = await measure(mesh, sample, {"policy": "random", "share": share}, size)
        sweep = [
            await measure(mesh, sample, {"policy": "entropy", "threshold": threshold}, size)
            for threshold in ENTROPY_SWEEP[:: 4 if quick else 1]
        ]
        result["entropy_sweep"] = sweep
        # At the share of r2r, or the next above it: the comparison is not to r2r's favour.
        result["entropy"] = next((point for point in sweep if point["llm_share"] >= share), sweep[-1])
        enough = [point for point in sweep if point["accuracy"] >= result["llm"]["accuracy"] - MARGIN]
        result["entropy_share_for_llm_accuracy"] = min((point["llm_share"] for point in enough), default=None)
    return result


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    result = asyncio.run(run(40 if options.quick else NUM_PROBLEMS, quick=options.quick))
    rows = [
        (
            name,
            point["accuracy"],
            point["llm_share"],
            point["cost"]["published_per_answer"],
            point["cost"]["full_per_answer"],
        )
        for name, point in [
            *((name, result[name]) for name in ("slm", "llm", "r2r", "random", "entropy")),
            *((f"entropy {point['routing']['threshold']:g}", point) for point in result["entropy_sweep"]),
        ]
    ]
    show(
        f"{result['num_problems']} held-out problems, greedy",
        ("policy", "accuracy", "LLM share", "cost (published)", "cost (full)"),
        rows,
    )
    finish(result, as_json=options.json)


if __name__ == "__main__":
    main()

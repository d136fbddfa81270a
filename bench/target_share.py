"""Whether a target share is held: `python -m bench.target_share`.

A mesh of the embedded pair for each target, held-out problems in rounds, the threshold left to the mesh. It starts
at the checkpoint's; told are the share of each round and the threshold at its end.
"""

import asyncio
from itertools import islice
from typing import Any

from allroads.training.problems import problems

from .mesh import Mesh, running_mesh
from .report import arguments, finish, show

TARGETS = (0.02, 0.10, 0.30)
_CONCURRENCY = 8


async def _round(mesh: Mesh, questions: list[str]) -> float:
    """LLM share of the tokens of all answers."""
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def ask(question: str) -> tuple[int, int]:
        async with gate:
            tokens = (await mesh.chat(question, {}))["routing"]["tokens"]
        return tokens["llm"], sum(tokens.values())

    counts = await asyncio.gather(*map(ask, questions))
    return sum(large for large, _ in counts) / sum(total for _, total in counts)


async def _threshold(mesh: Mesh) -> float:
    scrape = (await mesh.client.get("/metrics")).text
    (line,) = [line for line in scrape.splitlines() if line.startswith("allroads_threshold ")]
    return float(line.split()[1])


async def measure(num_rounds: int, num_questions: int) -> list[dict[str, Any]]:
    """Shares and thresholds by round, for each target."""
    results = []
    for target in TARGETS:
        source = problems("test", 0)
        async with running_mesh(ALLROADS_SLM__TARGET_SHARE=str(target)) as mesh:
            shares, thresholds = [], []
            for _ in range(num_rounds):
                shares.append(await _round(mesh, [problem.question for problem in islice(source, num_questions)]))
                thresholds.append(await _threshold(mesh))
        settled = shares[num_rounds // 2 :]
        results.append(
            {
                "target": target,
                "shares": shares,
                "thresholds": thresholds,
                "settled_share": sum(settled) / len(settled),
                "largest_error": max(abs(share - target) for share in settled),
            }
        )
    return results


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    results = asyncio.run(measure(4, 50) if options.quick else measure(8, 100))
    rows = [
        [
            f"{result['target']:.0%}",
            " ".join(f"{share:.1%}" for share in result["shares"]),
            f"{result['settled_share']:.1%}",
            f"{100 * result['largest_error']:.1f} points",
            f"{result['thresholds'][-1]:.4g}",
        ]
        for result in results
    ]
    show(
        "share of tokens for the large model, held by its threshold",
        ["target", "by round", "second half", "largest error there", "threshold"],
        rows,
    )
    finish({"results": results}, as_json=options.json)


if __name__ == "__main__":
    main()

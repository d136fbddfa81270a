"""Is a greedy answer the same alone and in company? How often its tokens differ, and how often who writes them.

`python -m bench.company`: 16 problems by r2r, each asked alone and then among 1, 3, 7 and 15 others, three times.
`--dtype bfloat16` asks in what a GPU serves, `--device cuda:0` on a GPU, `--config FILE` another pair, and
`--batch-invariant` with attention that does not look at company. An answer differs by its first token that does; a
route by who writes a token while the text before it is still the same.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from allroads.training.problems import problems

from .mesh import Mesh, running_mesh
from .report import arguments, finish, show

COMPANY = (0, 1, 3, 7, 15)
NUM_PROBLEMS, NUM_REPEATS = 16, 3
_MAX_TOKENS = 128


@dataclass
class Differences:
    """Of answers in company of one size, from those that were given alone."""

    num_answers: int = 0
    num_tokens: int = 0
    num_differing: int = 0
    """Answers with another token somewhere."""
    num_flips: int = 0
    """Tokens that another model wrote, the text before being the same."""
    places: list[int] = field(default_factory=list)
    """Of the first token that differs."""

    def add(self, alone: dict[str, Any], found: dict[str, Any]) -> None:
        """Compare two `routing` blocks of the same request."""
        same = 0
        pairs = zip(alone["token_ids"], found["token_ids"], strict=False)
        for same, (mine, its) in enumerate(pairs):  # noqa: B007 (what is left of it is the place)
            if mine != its:
                break
        else:
            same = min(len(alone["token_ids"]), len(found["token_ids"]))
        self.num_answers += 1
        self.num_tokens += same
        self.num_flips += sum(
            mine != its for mine, its in zip(alone["tiers"][:same], found["tiers"][:same], strict=True)
        )
        if alone["token_ids"] != found["token_ids"]:
            self.num_differing += 1
            self.places.append(same)

    def report(self) -> dict[str, Any]:
        """As rates."""
        return {
            "answers": self.num_answers,
            "differing_answers": self.num_differing / self.num_answers,
            "flipped_routes_per_token": self.num_flips / max(self.num_tokens, 1),
            "first_difference_at": sorted(self.places)[len(self.places) // 2] if self.places else None,
        }


async def ask(mesh: Mesh, question: str) -> dict[str, Any]:
    """The `routing` block of an answer."""
    reply = await mesh.chat(question, {"policy": "r2r", "report_tokens": True}, max_tokens=_MAX_TOKENS)
    block: dict[str, Any] = reply["routing"]
    return block


async def run(options: tuple[str, ...], environment: dict[str, str], *, quick: bool) -> dict[str, Any]:
    """All sizes of company in one mesh."""
    num_problems, num_repeats = (4, 1) if quick else (NUM_PROBLEMS, NUM_REPEATS)
    # Others are other problems each time, so that no prefix of theirs is there already.
    questions = (problem.question for problem in problems("test", 0))
    chosen = list(islice(questions, num_problems))
    found = {size: Differences() for size in COMPANY}
    async with running_mesh(*options, **environment) as mesh:
        alone = [await ask(mesh, question) for question in chosen]
        for _ in range(num_repeats):
            for size, differences in found.items():
                for question, before in zip(chosen, alone, strict=True):
                    others = islice(questions, size)
                    block, *_ = await asyncio.gather(ask(mesh, question), *(ask(mesh, other) for other in others))
                    differences.add(before, block)
    return {"environment_variables": environment, "company": {size: one.report() for size, one in found.items()}}


def main() -> None:
    """Command line."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--config", help="of another pair; its own dtype and device are overridden")
    parser.add_argument("--batch-invariant", action="store_true")
    options = parser.parse_args()
    environment = {"ALLROADS_ROUTER__DEVICE": options.device}
    for tier in ("SLM", "LLM"):
        environment[f"ALLROADS_{tier}__DTYPE"] = options.dtype
        environment[f"ALLROADS_{tier}__DEVICE"] = options.device
        environment[f"ALLROADS_{tier}__BATCH_INVARIANT"] = str(options.batch_invariant).lower()
    result = asyncio.run(run(("--config", options.config) if options.config else (), environment, quick=options.quick))
    show(
        f"{options.dtype} on {options.device}: an answer among others against the same one alone",
        ("others", "answers", "differ", "flipped routes a token", "first difference, median"),
        [
            (size, *(cell if cell is not None else "-" for cell in point.values()))
            for size, point in result["company"].items()
        ],
    )
    finish(result, as_json=options.json)


if __name__ == "__main__":
    main()

"""The problems of an evaluation: those of a file, or held-out ones of the embedded pair's language."""

import random
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from ..problem_file import FileProblem, file_sha256, read_problems
from ..training.problems import problems as embedded_problems


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems and where they are from."""

    problems: tuple[FileProblem, ...]
    source: dict[str, Any]
    """For the record, so that the same ones are found again."""


def from_file(path: Path, max_problems: int | None, seed: int) -> ProblemSet:
    """All problems of a file, or a sample of them, drawn by the seed and in the order of the file.

    Raises:
        InvalidArgument: as `problem_file.read_problems`; every problem needs an answer.
    """
    problems = read_problems(path, needs_answers=True)
    total = len(problems)
    if max_problems is not None and max_problems < total:
        problems = [problems[index] for index in sorted(random.Random(seed).sample(range(total), max_problems))]
    source = {"file": path.name, "sha256": file_sha256(path), "of": total, "count": len(problems)}
    return ProblemSet(tuple(problems), source)


def embedded(num_problems: int, seed: int) -> ProblemSet:
    """Test problems of the embedded pair's language.

    Raises:
        InvalidArgument: there are to be none.
    """
    if num_problems < 1:
        raise InvalidArgument(f"num_problems must be at least 1, not {num_problems}", field="num_problems")
    problems = tuple(
        FileProblem(
            id=f"embedded-{index}",
            messages=({"role": "user", "content": problem.question},),
            # The last number that is called the answer.
            answer=rf"(?s)answer is {problem.answer}(?!\d)(?!.*answer is \d)",
            scorer="regex",
        )
        for index, problem in enumerate(islice(embedded_problems("test", seed), num_problems))
    )
    return ProblemSet(problems, {"embedded": "test", "seed": seed, "count": num_problems})

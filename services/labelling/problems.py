"""What the large model is asked: problems of a file, or those that the embedded pair was made for."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..errors import InvalidArgument
from ..gateway.text.tokenizer import TextTokenizer
from ..problem_file import FileProblem, file_sha256, read_problems
from ..training.problems import problems as generated_problems


@dataclass(frozen=True, slots=True)
class Problems:
    """All problems of a run, and where they came from."""

    problems: Sequence[FileProblem]
    source: str
    seed: int
    """Of generated ones; 0 for those of a file."""
    sha256: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem as the models see it."""

    index: int
    """Its place among all problems."""
    problem: FileProblem
    token_ids: list[int]

    @property
    def question(self) -> str:
        """What was asked, as text for a judge."""
        return "\n\n".join(message["content"] for message in self.problem.messages)


def problems_of_file(path: Path, limit: int | None = None) -> Problems:
    """The problems of a file, the first `limit` of them.

    Raises:
        InvalidArgument: as `problem_file.read_problems`.
    """
    problems = read_problems(path)[:limit]
    return Problems(problems, f"{path.name}, {len(problems)} problems", 0, file_sha256(path))


def embedded_problems(count: int, seed: int) -> Problems:
    """So many training problems of the embedded pair's language, always the same for a seed."""
    found = [
        FileProblem(
            id=f"train-{seed}-{index}",
            messages=({"role": "user", "content": problem.question},),
            answer=str(problem.answer),
            scorer="numeric",
        )
        for index, problem in enumerate(islice(generated_problems("train", seed), count))
    ]
    text = "\n".join(problem.messages[0]["content"] for problem in found)
    return Problems(found, "allroads.training.problems, split train", seed, hashlib.sha256(text.encode()).hexdigest())


def encode(tokenizer: TextTokenizer, problems: Sequence[FileProblem]) -> list[Prompt]:
    """Token ids of the problems in chat form, open for the answer.

    Raises:
        InvalidArgument: the model has no chat template, or it refuses a problem, which the message names.
    """
    return asyncio.run(_encode(tokenizer, problems))


async def _encode(tokenizer: TextTokenizer, problems: Sequence[FileProblem]) -> list[Prompt]:
    prompts = []
    for index, problem in enumerate(problems):
        try:
            token_ids = await tokenizer.encode_chat(problem.messages)
        except InvalidArgument as error:
            raise InvalidArgument(f"problem {problem.id!r}: {error.message}", field="messages") from error
        prompts.append(Prompt(index, problem, token_ids))
    return prompts

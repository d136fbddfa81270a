"""What a judge is shown, and the judges that need no model."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..answer_scoring import AnswerScorer, final_text, is_exact, is_number
from ..errors import InvalidArgument
from ..problem_file import FileProblem, last_number
from ..training.judge import sentences_agree
from .problems import Prompt
from .settings import ExactAnswer
from .writing import nobody


@dataclass(frozen=True, slots=True)
class Branch:
    """One way to go on with an answer."""

    text: str
    """Without the token that ends the text."""
    ends: bool
    """Whether the text ends with it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A token of the small model against the large one's own, each as the large model goes on from it.

    Branches begin where the sentence begins, or the answer for a judge that reads answers.
    """

    prompt: Prompt
    context: str
    """The answer before the branches begin."""
    ours: Branch
    """By way of the small model's token."""
    theirs: Branch
    """As the large model wrote it."""


class Judge(Protocol):
    """Tells wording from meaning."""

    reads_answers: bool
    """Whether branches go to the end of the answer, and not only to that of a sentence."""

    def agree(self, comparisons: Sequence[Comparison], on_done: Callable[[int], None] = nobody) -> list[bool | None]:
        """Whether each difference is mere wording (neutral), not meaning (divergent); None gives no label.

        Args:
            comparisons: those of one answer follow each other.
            on_done: is told how many more are judged.

        Raises:
            AllroadsError: the judge cannot judge at all, now or ever.
        """
        ...


class SentenceJudge:
    """The exact judge of the embedded pair's language."""

    reads_answers = False

    def agree(self, comparisons: Sequence[Comparison], on_done: Callable[[int], None] = nobody) -> list[bool | None]:
        """See `Judge`. An end of the text is part of what a sentence says."""
        on_done(len(comparisons))
        return [
            one.ours.ends == one.theirs.ends and sentences_agree(one.ours.text, one.theirs.text) for one in comparisons
        ]


class AnswerJudge:
    """Compares final answers. One that is never reached gives no label."""

    reads_answers = True

    def __init__(self, settings: ExactAnswer, problems: Sequence[FileProblem]) -> None:
        """See that every problem can be judged.

        Raises:
            InvalidArgument: a problem has no reference, or one that only a judge can read.
        """
        self._by_reference = settings.against == "reference"
        self._scorer = AnswerScorer()
        if self._by_reference:
            for problem in problems:
                if problem.answer is None or problem.scorer == "judge":
                    raise InvalidArgument(
                        f"problem {problem.id!r} has no answer that exact-answer could compare with: give it `answer` "
                        "and another scorer than judge, or set judge.against to llm",
                        field="answer",
                    )

    def agree(self, comparisons: Sequence[Comparison], on_done: Callable[[int], None] = nobody) -> list[bool | None]:
        """See `Judge`."""
        on_done(len(comparisons))
        return asyncio.run(self._agree(comparisons))

    async def _agree(self, comparisons: Sequence[Comparison]) -> list[bool | None]:
        return [await self._same(one) if one.ours.ends else None for one in comparisons]

    async def _same(self, one: Comparison) -> bool | None:
        problem = one.prompt.problem
        if self._by_reference:
            return await self._scorer.is_right(problem, one.ours.text)
        own = final_text(one.theirs.text)
        compare = is_exact if last_number(own) is None else is_number
        return compare(replace(problem, answer=own), final_text(one.ours.text))

"""Is an answer right? One scorer for each way in which a problem file can say so."""

import re
from collections.abc import Callable, Mapping

from .errors import InvalidArgument
from .judge_endpoint import JudgeEndpoint
from .problem_file import FileProblem, ScorerName, last_number

_END_OF_THOUGHT = "</think>"
_VERDICT = re.compile(r"[A-Za-z]+")

_JUDGE_TASK = """You check answers to a question against a reference answer. Judge the final answer only: wording, \
form and working do not matter. Reply with one word: CORRECT or INCORRECT."""
_JUDGE_CASE = """Question:
{question}

Reference answer:
{reference}

Answer to check:
{answer}

CORRECT or INCORRECT?"""


def final_text(text: str) -> str:
    """What follows a model's thoughts, which end in `</think>`; all of it where there is no such mark."""
    return text.rpartition(_END_OF_THOUGHT)[2]


def is_exact(problem: FileProblem, text: str) -> bool:
    """The same words in the same order; amounts of white space do not count."""
    return text.split() == _reference(problem).split()


def is_number(problem: FileProblem, text: str) -> bool:
    """The last number of both is the same, but for the problem's tolerance."""
    wanted, given = last_number(_reference(problem)), last_number(text)
    return wanted is not None and given is not None and abs(given - wanted) <= problem.tolerance


def matches(problem: FileProblem, text: str) -> bool:
    """The pattern is found anywhere in the text (`re.search`)."""
    return re.search(_reference(problem), text) is not None


_LOCAL: Mapping[ScorerName, Callable[[FileProblem, str], bool]] = {
    "exact": is_exact,
    "numeric": is_number,
    "regex": matches,
}


class AnswerScorer:
    """Scores answers by each problem's own scorer."""

    def __init__(self, judge: JudgeEndpoint | None = None) -> None:
        self._judge = judge

    def check(self, problem: FileProblem) -> None:
        """See that a problem can be scored.

        Raises:
            InvalidArgument: it has no answer, or needs a judge that is not there.
        """
        if problem.answer is None:
            raise InvalidArgument(f"problem {problem.id!r} has no answer to compare with", field="answer")
        if problem.scorer == "judge" and self._judge is None:
            raise InvalidArgument(
                f"problem {problem.id!r} is for a judge, and none was named; name one with --judge-url and "
                "--judge-model",
                field="scorer",
            )

    async def is_right(self, problem: FileProblem, text: str) -> bool | None:
        """Whether an answer is right; None where a judge gave no verdict.

        Raises:
            InvalidArgument: as `check`, or the judge refuses.
            Unavailable: the judge is out of reach.
        """
        self.check(problem)
        final = final_text(text)
        if problem.scorer == "judge" and self._judge is not None:
            return read_verdict(await self._judge.ask(judge_messages(problem, final)))
        return _LOCAL[problem.scorer](problem, final)


def judge_messages(problem: FileProblem, answer: str) -> list[dict[str, str]]:
    """What a judge is asked. What the model wrote stands last, so that it can at worst spoil its own verdict."""
    question = "\n\n".join(message["content"] for message in problem.messages)
    case = _JUDGE_CASE.format(question=question, reference=_reference(problem), answer=answer)
    return [{"role": "system", "content": _JUDGE_TASK}, {"role": "user", "content": case}]


def read_verdict(reply: str) -> bool | None:
    """What a judge's reply says by its first word of the two; None where it has neither."""
    for word in _VERDICT.findall(final_text(reply)):
        if word.upper() in ("CORRECT", "INCORRECT"):
            return bool(word.upper() == "CORRECT")
    return None


def _reference(problem: FileProblem) -> str:
    return problem.answer or ""

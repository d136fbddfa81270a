"""Answers as they are kept: one JSON object a line in `answers.jsonl`, so that a run goes on where it stopped."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import InvalidArgument
from .cost import Work

ANSWERS_FILE = "answers.jsonl"


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token of an answer that the report shows."""

    data: tuple[int, ...]
    """Its bytes; a character may be spread over several tokens."""
    tier: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one arm."""

    arm: str
    """Key of what was asked of the mesh."""
    problem: str
    """The problem's id."""
    text: str
    right: bool | None
    """None where a judge gave no verdict."""
    finish: str
    """`stop`, `length`, or `error` where the problem does not fit the mesh's window."""
    prompt_tokens: int
    tokens: dict[str, int]
    """Committed tokens by the name of the tier that wrote them, the small model's first."""
    computed: tuple[int, ...] | None
    """Positions that each tier computed; None where the mesh gave no account, as are the next three."""
    scored: int | None
    rejected: int | None
    """Proposals that were turned down, drafts that fell included."""
    hand_offs: int | None
    tiers: tuple[int, ...]
    """Who wrote each token."""
    degraded: bool
    """Whether the small model had to finish alone."""
    started_s: float
    """Seconds since 1970, as is the next."""
    ended_s: float
    logprob: float | None = None
    """Mean of the tokens' natural log-probabilities, where that was asked for."""
    shown: tuple[ShownToken, ...] = ()
    """Tokens with their texts, where the answer is for showing."""

    @property
    def num_tokens(self) -> int:
        """Length."""
        return sum(self.tokens.values())

    @property
    def work(self) -> Work | None:
        """What it took; None where that is not known."""
        if self.computed is None or self.scored is None:
            return None
        return Work(tuple(self.tokens.values()), self.computed, self.scored)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The answer that became these values."""
        shown = tuple(ShownToken(tuple(token["data"]), token["tier"]) for token in content.pop("shown"))
        computed = content.pop("computed")
        tiers = _unpacked(content.pop("tiers"))
        return cls(**content, shown=shown, tiers=tiers, computed=None if computed is None else tuple(computed))

    def to_json(self) -> dict[str, Any]:
        """Plain values; runs of one tier are told as [tier, length]."""
        return asdict(self) | {"tiers": _packed(self.tiers)}


class AnswerLog:
    """All answers of a run, on disk and at hand. A context manager."""

    def __init__(self, directory: Path) -> None:
        """Read what an earlier run left; a last line that was not finished is dropped.

        Raises:
            InvalidArgument: the file holds something else.
        """
        self._path = directory / ANSWERS_FILE
        self._found: dict[tuple[str, str], Answer] = {}
        if self._path.exists():
            for answer in _read(self._path):
                self._found[answer.arm, answer.problem] = answer
        self._file = self._path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, answer: Answer) -> None:
        """Keep an answer; it is on its way to the disk when this returns."""
        self._found[answer.arm, answer.problem] = answer
        self._file.write(json.dumps(answer.to_json(), separators=(",", ":"), allow_nan=False) + "\n")
        self._file.flush()

    def has(self, arm: str, problem: str) -> bool:
        """Whether that was answered."""
        return (arm, problem) in self._found

    def of(self, arm: str, problems: Iterable[str]) -> list[Answer]:
        """An arm's answers in the order of the problems; all must be there."""
        return [self._found[arm, problem] for problem in problems]


def _read(path: Path) -> list[Answer]:
    content = path.read_bytes()
    whole, newline, rest = content.rpartition(b"\n")
    if rest:
        os.truncate(path, len(whole) + len(newline))
    answers = []
    for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
        try:
            answers.append(Answer.from_json(json.loads(line)))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"{path}, line {number} is not an answer of this version; use another directory", field="out"
            ) from error
    return answers


def _packed(tiers: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for tier in tiers:
        if runs and runs[-1][0] == tier:
            runs[-1][1] += 1
        else:
            runs.append([tier, 1])
    return runs


def _unpacked(runs: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(tier for tier, length in runs for _ in range(length))

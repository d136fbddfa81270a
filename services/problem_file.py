"""Files of prompts or problems: JSON Lines, one problem a line (docs/evaluation.md).

{"id": "1", "prompt": "How much is 2 + 2?", "answer": "4", "scorer": "numeric"}
{"id": "2", "messages": [{"role": "user", "content": "Hello"}]}
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from .errors import InvalidArgument

ScorerName = Literal["exact", "numeric", "regex", "judge"]
SCORERS: tuple[ScorerName, ...] = get_args(ScorerName)
MAX_LINE_BYTES = 4 * 1024 * 1024
"""Of one problem."""
MAX_ID_CHARACTERS = 200

_FIELDS = ("id", "prompt", "messages", "answer", "scorer", "tolerance")
_ROLES = ("system", "user", "assistant", "developer", "tool")


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One line."""

    id: str
    messages: tuple[dict[str, str], ...]
    """`{"role", "content"}` each; a `prompt` is one message of the user."""
    answer: str | None = None
    """What is right: a text, a number, or a pattern, as `scorer` reads it. None where the file does not say."""
    scorer: ScorerName = "exact"
    tolerance: float = 0.0
    """Of `numeric`: how far a number may be off."""


def read_problems(path: Path, *, needs_answers: bool = False) -> list[FileProblem]:
    """All problems of a file; empty lines are skipped.

    Args:
        path: of the file.
        needs_answers: whether a problem without `answer` is refused.

    Raises:
        InvalidArgument: the file cannot be read or has no problem, or a line is wrong; names the line and the field.
    """
    found: dict[str, int] = {}
    problems = []
    try:
        with path.open("rb") as file:
            for number, line in _lines(file, path):
                problem = _parse(line, _Place(path, number), needs_answers=needs_answers)
                if problem.id in found:
                    raise _Place(path, number).fault("id", f"{problem.id!r} is the id of line {found[problem.id]} too")
                found[problem.id] = number
                problems.append(problem)
    except OSError as error:
        raise InvalidArgument(f"cannot read the problems in {path}: {error.strerror}", field="problems") from error
    if not problems:
        raise InvalidArgument(f"{path} holds no problem: write one JSON object a line", field="problems")
    return problems


def file_sha256(path: Path) -> str:
    """Of the whole file, as hexadecimal digits.

    Raises:
        InvalidArgument: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidArgument(f"cannot read the problems in {path}: {error.strerror}", field="problems") from error


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path
    number: int

    def fault(self, field: str, what: str) -> InvalidArgument:
        """An error that names line and field; an empty field stands for the whole line."""
        where = f"{self.path}, line {self.number}" + (f", {field}" if field else "")
        return InvalidArgument(f"{where}: {what}", field=field or "problems")


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    # No more of a line is ever held than it may have.
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise _Place(path, number).fault("", f"a line may have {MAX_LINE_BYTES} bytes at most")
        if line.strip():
            yield number, line


def _parse(line: bytes, place: _Place, *, needs_answers: bool) -> FileProblem:
    try:
        content = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise place.fault("", f"it must be one JSON object in UTF-8 ({_reason(error)})") from None
    if not isinstance(content, dict):
        raise place.fault("", f"it must be a JSON object, not {type(content).__name__}")
    for name in content:
        if name not in _FIELDS:
            raise place.fault(name[:60], f"there is no such field; there are {', '.join(_FIELDS)}")
    name, messages = _id(content, place), _messages(content, place)
    scorer = _scorer(content, place)
    answer = _answer(content, scorer, place)
    if needs_answers and answer is None:
        raise place.fault("answer", "is missing; say what is right")
    return FileProblem(name, messages, answer, scorer, _tolerance(content, place))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _reason(error: ValueError | RecursionError) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)[:80]


def _id(content: dict[str, Any], place: _Place) -> str:
    given = content.get("id")
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    if not isinstance(given, str) or not 0 < len(given) <= MAX_ID_CHARACTERS:
        raise place.fault("id", f"must be a text of 1 to {MAX_ID_CHARACTERS} characters that no other line has")
    return given


def _messages(content: dict[str, Any], place: _Place) -> tuple[dict[str, str], ...]:
    if ("prompt" in content) == ("messages" in content):
        raise place.fault("prompt", "there must be either prompt or messages, and not both")
    if "prompt" in content:
        return ({"role": "user", "content": _text(content["prompt"], "prompt", place)},)
    given = content["messages"]
    if not isinstance(given, list) or not given:
        raise place.fault("messages", 'must be a list of {"role", "content"}, and not empty')
    return tuple(_message(message, f"messages.{index}", place) for index, message in enumerate(given))


def _message(message: object, field: str, place: _Place) -> dict[str, str]:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        raise place.fault(field, "must have role and content, and nothing else")
    if message["role"] not in _ROLES:
        raise place.fault(f"{field}.role", f"must be one of {', '.join(_ROLES)}")
    return {"role": message["role"], "content": _text(message["content"], f"{field}.content", place)}


def _text(value: object, field: str, place: _Place) -> str:
    if not isinstance(value, str) or not value.strip():
        raise place.fault(field, "must be a text, and not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise place.fault(field, "has half of a character (a lone surrogate)") from None
    return value


def _scorer(content: dict[str, Any], place: _Place) -> ScorerName:
    given = content.get("scorer", "exact")
    for name in SCORERS:
        if given == name:
            return name
    raise place.fault("scorer", f"must be one of {', '.join(SCORERS)}")


def _answer(content: dict[str, Any], scorer: ScorerName, place: _Place) -> str | None:
    given = content.get("answer")
    if given is None:
        return None
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = str(given)
    answer = _text(given, "answer", place)
    if scorer == "numeric" and last_number(answer) is None:
        raise place.fault("answer", f"{answer[:60]!r} has no number, which the scorer numeric needs")
    if scorer == "regex":
        try:
            re.compile(answer)
        except (re.error, RecursionError, OverflowError) as error:
            raise place.fault("answer", f"is no pattern of Python's re: {error}") from None
    return answer


def _tolerance(content: dict[str, Any], place: _Place) -> float:
    given = content.get("tolerance", 0.0)
    # An integer of JSON may be larger than any float.
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1e300:
        raise place.fault("tolerance", "must be a number from 0 up")
    return float(given)


# Groups of thousands are bounded so that a model's endless row of zeros is read in one go.
_NUMBER = re.compile(
    # Groups of thousands are bounded so that a model's endless row of zeros is read in one go.
    r"(?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3}){1,8}|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,2})?(?!\w)"
)


def last_number(text: str) -> float | None:
    """The last number of a text, or None; `1,234.5` is one number, and so are `-3`, `.5` and `1e-3`."""
    found = _NUMBER.findall(text.replace("\u2212", "-"))
    return float(found[-1].replace(",", "")) if found else None

"""Decisions that a person judges, and what was said of them: one file, to which every answer is added at once.

JSON Lines: `{"v":1,"item":{...}}` for a decision, `{"v":1,"t":...,"id":...,"answer":...}` for an answer. Of several
answers to one decision the last holds, so that a correction is just another line. The file is its owner's alone: the
contexts are what users wrote.
"""

import fcntl
import os
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import AllroadsError, StartupError
from .decision_file import MAX_LINE_BYTES, Number, PolicyName, TokenId

ItemId = Annotated[str, Field(pattern=r"^[0-9A-Za-z_-]{1,64}/[0-9]{1,15}/[0-9]{1,10}$")]


class Answer(StrEnum):
    """What a person says of the small model's token."""

    DIVERGENT = "divergent"
    """It changes meaning, reasoning or outcome: the large model should write here."""
    NEUTRAL = "neutral"
    """Other words, same meaning."""
    SAME = "same"
    """No difference at all, such as another spelling of the same token."""
    SKIP = "skip"
    """Cannot be told."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Item(_Part):
    """A decision, as far as it takes to judge it."""

    id: ItemId
    """Run, request and position."""
    policy: PolicyName
    threshold: Number | None
    score: Number | None
    routed: bool
    proposal: TokenId
    large: TokenId | None
    context: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    """Token ids before the position, the nearest last."""
    is_whole: bool
    """Whether the context is known to begin with the prompt's first token. Only then can features be computed again."""

    @property
    def request(self) -> str:
        """Run and request."""
        return self.id.rpartition("/")[0]

    @property
    def position(self) -> int:
        """In the answer."""
        return int(self.id.rpartition("/")[2])


class _ItemLine(_Part):
    v: Literal[1] = 1
    item: Item


class _AnswerLine(_Part):
    v: Literal[1] = 1
    t: Number
    id: ItemId
    answer: Answer


class ReviewQueue:
    """A file of decisions and answers. A context manager; one at a time has the file."""

    def __init__(self, path: Path) -> None:
        """Open the file, or begin it.

        Raises:
            StartupError: it cannot be written, is damaged, or another review has it.
        """
        self.items: dict[str, Item] = {}
        """By id, in the order in which they are asked."""
        self.answers: dict[str, Answer] = {}
        """The last one to each."""
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(f"--queue: cannot write {path}: {error.strerror}", field="queue") from error
        try:
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    @property
    def open_items(self) -> list[Item]:
        """Those without an answer."""
        return [item for item in self.items.values() if item.id not in self.answers]

    def add(self, items: Iterable[Item]) -> None:
        """Put decisions at the end."""
        for item in items:
            if item.id not in self.items:
                self._append(_ItemLine(item=item))
                self.items[item.id] = item

    def answer(self, item: Item, answer: Answer) -> None:
        """Write down an answer, or a correction. It is on the disk when this returns."""
        self._append(_AnswerLine(t=round(time.time(), 3), id=item.id, answer=answer))
        self.answers[item.id] = answer

    def _append(self, line: _Part) -> None:
        content = line.model_dump_json().encode() + b"\n"
        # One write, so that there is a whole line or, at a crash, its beginning, which the next opening takes off.
        if os.write(self._file, content) != len(content):
            raise AllroadsError(f"{self._path}: an answer was not written whole: is the disk full?")
        os.fsync(self._file)

    def _read(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartupError(f"--queue: another review has {self._path}; end it first", field="queue") from error
        with open(self._file, "rb", closefd=False) as file:
            end = number = 0
            while text := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if not text.endswith(b"\n"):
                    if len(text) > MAX_LINE_BYTES or not text.startswith(b'{"v":1,'[: len(text)]):
                        raise self._refusal(number, "the line", "is too long, or none of a review queue")
                    os.ftruncate(self._file, end)
                    break
                end += len(text)
                self._take(number, text)

    def _take(self, number: int, text: bytes) -> None:
        try:
            if b'"item":' in text:
                item = _ItemLine.model_validate_json(text).item
                self.items[item.id] = item
            else:
                line = _AnswerLine.model_validate_json(text)
                if line.id not in self.items:
                    raise self._refusal(number, "id", "answers a decision that is not in the file")
                self.answers[line.id] = line.answer
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, problem["loc"])) or "the line"
            raise self._refusal(number, field, problem["msg"]) from error

    def _refusal(self, number: int, field: str, message: str) -> StartupError:
        return StartupError(
            f"--queue: {self._path}, line {number}: {field}: {message}; this is no review queue, or it was damaged",
            field=field,
        )

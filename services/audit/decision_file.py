"""Decision logs, read line by line: PATH and what was put away as PATH.1, PATH.2, ..., oldest first.

A crash may tear the last line of a file, and the next run goes on behind what is left of it. That much is forgiven
and counted; any other line that is not as `docs/audit.md` describes is refused, by its number and field.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Annotated, BinaryIO, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..config import Mode
from ..errors import StartupError

MAX_LINE_BYTES = 1 << 20
_START = b'{"v":'
"""How a line begins. Within one, only another line can begin so: quotes in a text are written `\\"`."""
_ENDS = re.compile(rb'"end"\s*:')

Run = Annotated[str, Field(pattern=r"^[0-9A-Za-z_-]{1,64}$")]
PolicyName = Annotated[str, Field(min_length=1, max_length=100)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Count = Annotated[int, Field(ge=0, lt=1 << 48)]
Number = Annotated[float, Field(allow_inf_nan=False)]
RequestKey = tuple[str, int]
"""A run of the service, and the number of a request in it."""


class Line(BaseModel):
    """What all lines have."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    v: Literal[1]
    t: Number
    """Seconds since 1970."""
    run: Run
    request: Count
    mode: Mode
    policy: PolicyName

    @property
    def key(self) -> RequestKey:
        """Whose line it is."""
        return self.run, self.request


class DecisionLine(Line):
    """What a policy said of one proposal, and what came of it."""

    threshold: Number | None
    """In force then; None where the policy has none."""
    position: TokenId
    """In the answer, from 0."""
    proposal: TokenId
    """The small model's token."""
    score: Number | None
    entropy: Number | None
    """Nats."""
    routed: bool
    """Whether the policy sent the position to a larger model."""
    acted: bool
    """Whether what the policy says is done in this request."""
    written: TokenId
    tier: Annotated[int, Field(ge=0, lt=64)]
    """Who wrote that token; the small model is 0."""
    large: TokenId | None
    """The large model's token, where it is known."""
    context: tuple[TokenId, ...] = ()
    """Last token ids before the position, where they were asked for."""

    @property
    def is_open(self) -> bool:
        """Whether the large model's token is known whatever the policy said: only such ones tell of what it missed."""
        return self.large is not None and not self.acted

    @property
    def differs(self) -> bool:
        """Whether the large model is known to write another token than the small one."""
        return self.large is not None and self.large != self.proposal


class EndLine(Line):
    """A request is over."""

    end: Literal["stop", "length", "error", "abort"]
    num_tokens: Annotated[tuple[Count, ...], Field(min_length=1, max_length=64)]
    """Of the answer, by tier."""
    num_prompt: Count

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if sum(self.num_tokens) >= 1 << 48:
            raise ValueError("num_tokens adds up to more than any answer has")
        return self


LogLine = DecisionLine | EndLine


class DecisionLog:
    """Files of one or several logs, opened together, so that rotation meanwhile changes nothing. A context manager.

    `lines` may be called again; each call reads what was there when the files were opened.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the files.

        Args:
            paths: newest file of each log; older ones are found beside it.

        Raises:
            StartupError: there is no such file, or it cannot be read.
        """
        self.num_torn = 0
        """Lines that a crash cut short, in the last reading."""
        self._stack = ExitStack()
        self._files: list[tuple[Path, BinaryIO, int]] = []
        try:
            for path in _all_files(paths):
                # In full, since a slow reader may be overtaken by the writer's rotation.
                file = self._stack.enter_context(path.open("rb"))
                self._files.append((path, file, file.seek(0, 2)))
        except OSError as error:
            self._stack.close()
            raise StartupError(f"cannot read the decision log: {error}", field="log") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def paths(self) -> list[Path]:
        """The files in the order in which they are read."""
        return [path for path, _, _ in self._files]

    def lines(self) -> Iterator[LogLine]:
        """All lines.

        Raises:
            StartupError: a line is damaged; names file, line and field.
        """
        self.num_torn = 0
        for path, file, size in self._files:
            file.seek(0)
            left, number = size, 0
            while left > 0 and (text := file.readline(min(left, MAX_LINE_BYTES + 1))):
                left, number = left - len(text), number + 1
                is_last = left <= 0
                if not text.endswith(b"\n") and not is_last:
                    raise _refusal(path, number, "the line", f"has more than {MAX_LINE_BYTES} bytes")
                if (line := self._parse(path, number, text, may_be_torn=is_last)) is not None:
                    yield line

    def _parse(self, path: Path, number: int, text: bytes, *, may_be_torn: bool) -> LogLine | None:
        kind = EndLine if _ENDS.search(text) else DecisionLine
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            if (rest := text.rfind(_START)) > 0:
                self.num_torn += 1
                return self._parse(path, number, text[rest:], may_be_torn=may_be_torn)
            problem = error.errors(include_url=False, include_input=False)[0]
            if may_be_torn and not text.endswith(b"\n") and problem["type"] == "json_invalid":
                self.num_torn += 1
                return None
            field = ".".join(str(part) for part in problem["loc"]) or "the line"
            raise _refusal(path, number, field, problem["msg"]) from error


def _refusal(path: Path, number: int, field: str, message: str) -> StartupError:
    return StartupError(
        f"{path}, line {number}: {field}: {message}; this is no decision log, or it was damaged: leave the file out",
        field=field,
    )


def _all_files(paths: Sequence[Path]) -> list[Path]:
    """The files of all logs, each once, by log oldest first."""
    found: dict[Path, None] = {}
    for path in paths:
        older = {
            int(other.name[len(path.name) + 1 :]): other
            for other in path.parent.glob("*")
            if re.fullmatch(re.escape(path.name) + r"\.[1-9][0-9]{0,5}", other.name) and other.is_file()
        }
        files = [older[number] for number in sorted(older, reverse=True)] + ([path] if path.is_file() else [])
        if not files:
            raise StartupError(
                f"no decision log {path}: give the file that slm.decisions_path names, after requests were served",
                field="log",
            )
        found |= dict.fromkeys(files)
    return list(found)

"""What a problem file may hold, and how a bad line is told."""

import json
from pathlib import Path
from typing import Any

import pytest
from allroads import problem_file
from allroads.errors import InvalidArgument
from allroads.problem_file import FileProblem, last_number, read_problems


def written(directory: Path, *lines: object) -> Path:
    path = directory / "problems.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


GOOD = {"id": "a", "prompt": "How much?", "answer": "4"}


def test_both_forms_are_read_and_empty_lines_skipped(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]
    path = written(
        tmp_path,
        {"id": 7, "prompt": "How much?", "answer": 4, "scorer": "numeric", "tolerance": 0.5},
        "",
        {"id": "b", "messages": messages},
    )
    assert read_problems(path) == [
        FileProblem("7", ({"role": "user", "content": "How much?"},), "4", "numeric", 0.5),
        FileProblem("b", tuple(messages)),
    ]


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ("{", "problems", "one JSON object"),
        ("[1]", "problems", "must be a JSON object, not list"),
        ('{"id": "b", "prompt": "x", "tolerance": NaN}', "problems", "NaN is no number"),
        (GOOD | {"id": ""}, "id", "1 to 200"),
        (GOOD | {"id": True}, "id", "1 to 200"),
        (GOOD, "id", "line 1 too"),
        ({"id": "b"}, "prompt", "either prompt or messages"),
        ({"id": "b", "prompt": "x", "messages": []}, "prompt", "either prompt or messages"),
        ({"id": "b", "prompt": 5}, "prompt", "must be a text"),
        ({"id": "b", "prompt": "\ud800"}, "prompt", "lone surrogate"),
        ({"id": "b", "messages": []}, "messages", "not empty"),
        ({"id": "b", "messages": [{"role": "me", "content": "x"}]}, "messages.0.role", "one of system"),
        ({"id": "b", "messages": [{"role": "user"}]}, "messages.0", "role and content"),
        ({"id": "b", "prompt": "x", "anwser": "4"}, "anwser", "no such field"),
        ({"id": "b", "prompt": "x", "answer": "4", "scorer": "fuzzy"}, "scorer", "one of exact, numeric"),
        ({"id": "b", "prompt": "x", "answer": "four", "scorer": "numeric"}, "answer", "has no number"),
        ({"id": "b", "prompt": "x", "answer": "(", "scorer": "regex"}, "answer", "no pattern"),
        ({"id": "b", "prompt": "x", "answer": "4", "tolerance": -1}, "tolerance", "from 0 up"),
        ({"id": "b", "prompt": "x", "answer": "4", "tolerance": "1"}, "tolerance", "from 0 up"),
        ({"id": "b", "prompt": "x"}, "answer", "is missing"),
    ],
)
def test_a_bad_line_is_told_by_its_number_and_field(tmp_path: Path, line: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match="line 2") as caught:
        read_problems(written(tmp_path, GOOD, line), needs_answers=True)
    assert caught.value.field == field
    assert words in caught.value.message


def test_a_line_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_file, "MAX_LINE_BYTES", 100)
    with pytest.raises(InvalidArgument, match="line 2: a line may have 100 bytes"):
        read_problems(written(tmp_path, GOOD, GOOD | {"id": "b", "prompt": "x" * 200}))


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidArgument, match="holds no problem"):
        read_problems(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot read the problems"):
        read_problems(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 42.", 42),
        ("3 + 4 = 7", 7),
        ("from 10 to -3", -3),
        ("it is \u22125 degrees", -5),
        ("3-4", 4),
        ("$1,234,567.50", 1234567.5),
        (r"\boxed{0.25}", 0.25),
        (".5", 0.5),
        ("about 2e-3 m", 0.002),
        ("on the 4th of May", None),
        ("none", None),
        ("e5", None),
        ("", None),
    ],
)
def test_the_last_number(text: str, number: float | None) -> None:
    assert last_number(text) == number

"""Logs are read in order and whole; what a crash left is forgiven, and nothing else is."""

import json
from pathlib import Path

import pytest
from allroads.audit.decision_file import MAX_LINE_BYTES, DecisionLine, DecisionLog, EndLine
from allroads.errors import StartupError
from allroads.slm.decision_log import DecisionLog as Writer

from .made_logs import decision, end, write


def requests(*paths: Path) -> list[int]:
    with DecisionLog(paths) as log:
        return [line.request for line in log.lines()]


def test_lines_are_what_was_written(tmp_path: Path) -> None:
    path = write(tmp_path / "log", [decision(7, 3, context=[1, 2]), decision(8, score=None, threshold=None), end(7)])
    with DecisionLog([path]) as log:
        first, second, last = log.lines()
    assert isinstance(first, DecisionLine)
    assert (first.key, first.position, first.score, first.context) == (("3fa9c1d2", 7), 3, 0.1, (1, 2))
    assert isinstance(second, DecisionLine)
    assert (second.score, second.threshold, second.context) == (None, None, ())
    assert isinstance(last, EndLine)
    assert (last.end, last.num_tokens, last.num_prompt) == ("stop", (0, 1), 10)


def test_files_that_were_put_away_come_first_and_the_oldest_at_that(tmp_path: Path) -> None:
    for number, name in enumerate(("log.10", "log.9", "log.2", "log.1", "log")):
        write(tmp_path / name, [decision(number)])
    for other in ("log.old", "log.1.gz", "log.01", "catalog.1", "log.0"):
        (tmp_path / other).write_text("nonsense")
    assert requests(tmp_path / "log") == [0, 1, 2, 3, 4]
    # As a shell's pattern gives them: none is read twice.
    assert requests(tmp_path / "log", tmp_path / "log.1", tmp_path / "log.2") == [0, 1, 2, 3, 4]
    (tmp_path / "log").unlink()
    assert requests(tmp_path / "log") == [0, 1, 2, 3]


def test_several_logs_are_read_one_after_the_other(tmp_path: Path) -> None:
    assert requests(write(tmp_path / "b", [decision(1)]), write(tmp_path / "a", [decision(2)])) == [1, 2]


def test_rotation_meanwhile_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "log", [decision(n) for n in range(5)])
    with DecisionLog([path]) as log:
        first = list(log.lines())
        with path.open("a") as file:
            file.write(json.dumps(decision(99)) + "\n")
        path.rename(tmp_path / "log.1")
        write(path, [decision(100)])
        assert list(log.lines()) == first


@pytest.mark.parametrize("cut", [1, 5, 40, 150])
def test_a_torn_last_line_is_left_out_and_counted(tmp_path: Path, cut: int) -> None:
    write(tmp_path / "log.1", [decision(0)])
    path = write(tmp_path / "log", [decision(1), decision(2)])
    for torn in (tmp_path / "log.1", path):
        with torn.open("a") as file:
            file.write(json.dumps(decision(50), separators=(",", ":"))[:cut])
    with DecisionLog([path]) as log:
        assert [line.request for line in log.lines()] == [0, 1, 2]
        assert log.num_torn == 2
        assert len(list(log.lines())) == 3
        assert log.num_torn == 2


def test_the_next_run_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    path = write(tmp_path / "log", [decision(1)])
    with path.open("a") as file:
        file.write(json.dumps(decision(2), separators=(",", ":"))[:70])
    writer = Writer(path, max_bytes=1 << 20, num_files=2)
    fields = {key: value for key, value in decision().items() if key not in {"v", "t", "run", "request"}}
    writer.write(3, **fields)
    writer.write(4, **fields)
    writer.close()
    with DecisionLog([path]) as log:
        assert [line.request for line in log.lines()] == [1, 3, 4]
        assert log.num_torn == 1


def test_a_last_line_without_its_end_of_line_counts_if_it_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "log", [decision(1), decision(2)])
    path.write_text(path.read_text()[:-1])
    assert requests(path) == [1, 2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ("line 2", "the line")),
        ("{}", ("line 2", "v")),
        ("[]", ("line 2",)),
        ('{"v":1,', ("line 2", "the line")),
        (decision(v=2), ("line 2", "v")),
        (decision(routed="yes"), ("line 2", "routed")),
        (decision(routed=1), ("line 2", "routed")),
        (decision(position=-1), ("line 2", "position")),
        ({**decision(), "position": 1.5}, ("line 2", "position")),
        (decision(proposal=True), ("line 2", "proposal")),
        (decision(score=float("nan")), ("line 2", "score")),
        (decision(score=float("inf")), ("line 2", "score")),
        (decision(tier=-1), ("line 2", "tier")),
        (decision(mode="maybe"), ("line 2", "mode")),
        (decision(run="../../x"), ("line 2", "run")),
        (decision(policy=""), ("line 2", "policy")),
        (decision(policy="x" * 101), ("line 2", "policy")),
        (decision(large=1 << 40), ("line 2", "large")),
        (decision(context=["a"]), ("line 2", "context.0")),
        (decision(prompt="text"), ("line 2", "prompt")),
        ({key: value for key, value in decision().items() if key != "large"}, ("line 2", "large")),
        (end(end="crash"), ("line 2", "end")),
        ({**end(), "num_tokens": []}, ("line 2", "num_tokens")),
        (end(num_prompt=-1), ("line 2", "num_prompt")),
    ],
)  # fmt: skip
def test_any_other_line_is_refused_by_number_and_field(tmp_path: Path, line: object, words: tuple[str, ...]) -> None:
    path = write(tmp_path / "log", [decision(1)])
    with path.open("a") as file:
        file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
        file.write(json.dumps(decision(3)) + "\n")
    with pytest.raises(StartupError) as refused:
        requests(path)
    assert all(word in refused.value.message for word in (str(path), *words))


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (3 * MAX_LINE_BYTES))
    with pytest.raises(StartupError, match=f"line 1: the line: has more than {MAX_LINE_BYTES} bytes"):
        requests(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(StartupError, match="line 1"):
        requests(path)


def test_a_log_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"no decision log .*nothing: give the file that slm\.decisions_path names"):
        requests(tmp_path / "nothing")

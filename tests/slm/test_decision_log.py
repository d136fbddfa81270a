"""The record of decisions: private, rotating, bounded, and no reason to stop serving."""

import json
import stat
from pathlib import Path
from threading import Event

import pytest
from allroads.errors import StartupError
from allroads.slm import decision_log
from allroads.slm.decision_log import DecisionLog


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, max_bytes=1 << 20, num_files=2)
    for number in range(100):
        log.write(number, score=0.5, routed=number % 2 == 0)
    log.close()
    lines = _lines(path)
    assert [line["request"] for line in lines] == list(range(100))
    assert len({line["run"] for line in lines}) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    for _ in range(2):
        log = DecisionLog(path, max_bytes=1 << 20, num_files=2)
        log.write(1)
        log.close()
    first, second = _lines(path)
    assert first["run"] != second["run"]


def test_files_rotate_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, max_bytes=2_000, num_files=3)
    for number in range(500):
        log.write(number)
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "decisions.jsonl", "decisions.jsonl.1", "decisions.jsonl.2",
    ]  # fmt: skip
    newest = [line["request"] for line in _lines(path)]
    assert newest[-1] == 499
    for file in tmp_path.iterdir():
        assert file.stat().st_size <= 2_000
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="decisions_path"):
        DecisionLog(tmp_path / "nowhere" / "x", max_bytes=1, num_files=1)


def test_a_disk_that_fails_ends_the_log_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = DecisionLog(tmp_path / "x", max_bytes=1 << 20, num_files=1)
    assert log._files.stream is not None
    log._files.stream.close()
    for number in range(50):
        log.write(number)
    log.close()
    assert caplog.text.count("not recorded any more") == 1


def test_a_disk_that_hangs_holds_up_no_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "_CLOSE_S", 0.2)
    log, freed = DecisionLog(tmp_path / "x", max_bytes=1 << 20, num_files=1), Event()
    monkeypatch.setattr(log._files, "handle", lambda record: freed.wait())
    log.write(1)
    log.close()
    assert "the end of it is lost" in caplog.text
    freed.set()
    log.close()

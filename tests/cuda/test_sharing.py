"""MPS found by what its control daemon leaves in a directory, and by its answer."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from allroads.cuda.sharing import advice, detect_mps


@pytest.fixture
def pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a control daemon that runs: its socket, and its process id."""
    directory = tmp_path / "p"
    directory.mkdir()
    (directory / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    with socket.socket(socket.AF_UNIX) as control:
        # By a short name: a socket's path has room for a hundred bytes.
        monkeypatch.chdir(directory)
        control.bind("control")
        yield directory


def environment(pipes: Path, programs: Path | None = None) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "PATH": str(programs or pipes / "no-programs")}


def control_program(directory: Path, script: str) -> Path:
    """A stand-in for the driver's program, which the daemon's user talks to it by."""
    programs = directory / "bin"
    programs.mkdir()
    program = programs / "nvidia-cuda-mps-control"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return programs


def test_no_directory_is_no_mps(tmp_path: Path) -> None:
    found = detect_mps(environment(tmp_path / "none"))
    assert (found.is_running, str(tmp_path / "none") in found.reason) == (False, True)


def test_a_socket_that_was_left_behind_is_no_mps(pipes: Path) -> None:
    (pipes / "nvidia-cuda-mps-control.pid").unlink()
    found = detect_mps(environment(pipes))
    assert not found.is_running
    assert "process id" in found.reason


def test_a_process_id_without_a_socket_is_no_mps(pipes: Path) -> None:
    (pipes / "control").unlink()
    assert "no control socket" in detect_mps(environment(pipes)).reason


def test_a_file_that_holds_no_process_id_is_no_mps(pipes: Path) -> None:
    (pipes / "nvidia-cuda-mps-control.pid").write_text("soon\n")
    found = detect_mps(environment(pipes))
    assert (found.is_running, "cannot be read" in found.reason) == (False, True)


def test_a_container_without_the_program_believes_what_is_mounted(pipes: Path) -> None:
    found = detect_mps(environment(pipes))
    assert found.is_running
    assert "is missing" in found.reason


def test_the_daemon_is_asked_in_that_directory(pipes: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    programs = control_program(tmp_path, f'read question; echo "$question in $CUDA_MPS_PIPE_DIRECTORY" > {said}')
    found = detect_mps(environment(pipes, programs))
    assert (found.is_running, "answers" in found.reason) == (True, True)
    assert said.read_text() == f"get_server_list in {pipes}\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo Cannot find MPS control daemon process; exit 1", "Cannot find MPS"), ("exit 3", "exit code 3")],
)
def test_a_daemon_that_does_not_answer_is_no_mps(pipes: Path, tmp_path: Path, script: str, words: str) -> None:
    found = detect_mps(environment(pipes, control_program(tmp_path, script)))
    assert not found.is_running
    assert words in found.reason


def test_a_daemon_that_hangs_is_no_mps(pipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allroads.cuda.sharing._TIMEOUT_S", 0.2)
    programs = control_program(tmp_path, "exec /bin/sleep 30")
    assert "timed out" in detect_mps(environment(pipes, programs)).reason


def test_the_advice_names_both_ways_out() -> None:
    words = advice("cuda:0", ["llm", "slm"])
    assert words.startswith("llm, slm are processes of their own on cuda:0")
    assert "nvidia-cuda-mps-control -d" in words
    assert "--single-process" in words

"""How processes share a GPU: at once where CUDA MPS runs, else in turns."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_DEFAULT_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 (the driver's own choice)
_PROGRAM = "nvidia-cuda-mps-control"
_QUESTION = "get_server_list\n"
"""Answered by a daemon in any state, also before the first client; changes nothing."""
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Mps:
    """Whether CUDA programs that start here become clients of a control daemon."""

    is_running: bool
    reason: str
    """By what it is known, for the log."""


def detect_mps(environment: Mapping[str, str] | None = None) -> Mps:
    """Look for MPS where a CUDA program would: in CUDA_MPS_PIPE_DIRECTORY, or in the driver's default directory.

    The daemon's socket outlives it, while the file with its process id goes when it stops in good order. So both must
    be there, and the daemon must answer its control program. Containers often have the directory without the program,
    and cannot see the process: what is mounted into them is then believed.

    `environment`: of the programs that are meant; this process's own where none is given.
    """
    environment = os.environ if environment is None else environment
    directory = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or _DEFAULT_DIRECTORY)
    try:
        int((directory / f"{_PROGRAM}.pid").read_text(encoding="ascii", errors="replace"))
        has_socket = (directory / "control").exists()
    except FileNotFoundError:
        return Mps(False, f"no control daemon has left its process id in {directory}")
    except (OSError, ValueError) as error:
        return Mps(False, f"{directory} cannot be read: {error}")
    if not has_socket:
        return Mps(False, f"there is no control socket in {directory}")
    program = shutil.which(_PROGRAM, path=environment.get("PATH"))
    if program is not None:
        return _ask(program, directory, environment)
    return Mps(True, f"{directory} is a control daemon's; it cannot be asked here, as {_PROGRAM} is missing")


def advice(device: str, services: list[str]) -> str:
    """What to tell of services whose processes take turns on a GPU."""
    return (
        f"{', '.join(services)} are processes of their own on {device}, which take turns there as CUDA MPS does not "
        f"run: each waits for the others' kernels. Start it once with `{_PROGRAM} -d`, before the mesh, as root or "
        "the same user (docs/gpu.md), or run all services in one process with `allroads up --single-process`"
    )


def _ask(program: str, directory: Path, environment: Mapping[str, str]) -> Mps:
    try:
        answer = subprocess.run(  # noqa: S603 (the driver's own program)
            [program],
            input=_QUESTION,
            env={**environment, "CUDA_MPS_PIPE_DIRECTORY": str(directory)},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Mps(False, f"the control daemon of {directory} does not answer: {error}")
    if answer.returncode:
        words = (answer.stderr or answer.stdout).strip().splitlines() or [f"exit code {answer.returncode}"]
        return Mps(False, f"the control daemon of {directory} does not answer: {words[-1]}")
    return Mps(True, f"its control daemon answers in {directory}")

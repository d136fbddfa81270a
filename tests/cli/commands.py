"""The command line as users run it: a process, its output, its exit code."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

from ..doubles.forks import fork_server
from .ends import TIMEOUT_S

COMMAND = (sys.executable, "-m", "allroads")


def environment(**variables: str) -> dict[str, str]:
    """Ours without what would change the outcome, with `variables`."""
    dropped = ("ALLROADS_", "FORCE_COLOR", "NO_COLOR", "COLUMNS", "TERM")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return {**kept, "COLUMNS": "100", **variables}


def run(*arguments: str | Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment(**variables),
    )


def run_fork(*arguments: str | Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """As `run`, its imports done before it starts: where a test is about what a command does when it runs."""
    if (server := fork_server()) is None:
        return run(*arguments, stdin=stdin, **variables)
    given = [*map(str, arguments)]
    with TemporaryFile() as words, TemporaryFile() as stdout, TemporaryFile() as stderr:
        words.write(stdin.encode())
        words.seek(0)
        fork = server.start("allroads", given, environment(**variables), stdin=words, stdout=stdout, stderr=stderr)
        try:
            code = fork.wait(TIMEOUT_S)
        finally:
            fork.kill()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess([*COMMAND, *given], code, stdout.read().decode(), stderr.read().decode())

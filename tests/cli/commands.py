"""The command line as users run it: a process, its output, its exit code."""

import os
import subprocess
import sys
from pathlib import Path

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

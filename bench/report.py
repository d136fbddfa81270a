"""What every script states and how it prints: machine, threads, versions, a table, and JSON on the last line."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

_PACKAGES = ("allroads", "torch", "transformers", "grpcio")


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the options that all scripts share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="under a minute, with wider error bars")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser


def environment() -> dict[str, Any]:
    """The machine, the threads of each model process, and the versions."""
    return {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=True),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "threads_per_model": 1,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
        "load_before": round(os.getloadavg()[0], 2),
    }


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, width: int = 120) -> None:
    """Print a table, `width` characters wide at most."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=width).print(table)


def finish(result: dict[str, Any], *, as_json: bool) -> None:
    """State the environment, this one unless the result has one, and print JSON on the last line where wanted."""
    result = {"environment": environment(), **result}
    print(f"machine: {result['environment']}", file=sys.stderr)
    if as_json:
        print(json.dumps(result))


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()

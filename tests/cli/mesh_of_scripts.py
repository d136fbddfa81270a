"""Meshes of scripted services, for tests and, run as a program, as a supervisor that can be killed."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from allroads.cli.services import Service, child_environment
from allroads.cli.stop import stop_on_signals
from allroads.cli.supervisor import Supervisor

from .scripted_service import HEALTH_NAME

NAMES = ("llm", "router", "slm", "gateway")
"""In the order in which they start."""
SCRIPT = Path(__file__).with_name("scripted_service.py")


def scripted_services(
    directory: Path, behaviours: Mapping[str, tuple[str, ...]], names: Sequence[str] = NAMES
) -> list[Service]:
    """The services of a mesh, each well-behaved unless told otherwise."""
    return [scripted_service(directory, name, *behaviours.get(name, ("serve",))) for name in names]


def scripted_service(directory: Path, name: str, *behaviour: str) -> Service:
    address = f"unix:{directory}/{name}.sock"
    return Service(
        name=name,
        command=(sys.executable, str(SCRIPT), str(os.getpid()), name, address, *behaviour),
        address=address,
        health_name=HEALTH_NAME,
        environment=child_environment(1),
    )


async def supervise(directory: Path) -> None:
    """Like `allroads up`: one line per child's line, `ready` when all are."""

    def write(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    with stop_on_signals() as stop:
        supervisor = Supervisor(
            scripted_services(directory, {}),
            ready_timeout_s=60,
            grace_s=5,
            on_line=lambda name, line: write(f"{name}: {line}"),
            on_ready=lambda: write("ready"),
        )
        await supervisor.run(stop)


if __name__ == "__main__":
    asyncio.run(supervise(Path(sys.argv[1])))

"""A service without a model: answers health checks, ends as its script says.

Run as a program: `scripted_service.py PARENT_PID NAME ADDRESS BEHAVIOUR [ARGUMENT]`.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from allroads.cli.parent import die_with_parent
from allroads.cli.stop import stop_on_signals
from allroads.mesh.server import ServiceServer

HEALTH_NAME = "allroads.test.Scripted"


async def serve(name: str, address: str) -> None:
    server = ServiceServer([HEALTH_NAME], max_message_bytes=1 << 20)
    with stop_on_signals() as stop:
        await server.start(address)
        await server.set_ready(True)
        print("serving", flush=True)
        await stop.asked.wait()
        await server.stop(0)
    print(f"stopped {name}", flush=True)


async def hang() -> None:
    """Never ready, deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("hanging", flush=True)
    await asyncio.Event().wait()


def first_life(mark: str) -> bool:
    """Whether this is the first process with that mark."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def main() -> None:
    parent_pid, name, address, behaviour, *arguments = sys.argv[1:]
    die_with_parent(int(parent_pid))
    if behaviour == "refuse" or (behaviour == "refuse-later" and not first_life(arguments[0])):
        print("error: the checkpoint is damaged; fetch it again", file=sys.stderr, flush=True)
        sys.exit(2)
    if behaviour == "hang":
        asyncio.run(hang())
    if behaviour == "leave-a-child" and first_life(arguments[0]):
        # A helper of the service's own, which holds on to the service's output.
        helper = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")
        Path(arguments[0]).write_text(str(helper))
    asyncio.run(serve(name, address))


if __name__ == "__main__":
    main()

"""From nothing to the first answer, and what each service keeps in memory.

`python -m bench.startup` copies the files that git tracks into a new folder, runs `make serve` there with
no virtual environment, and asks one question as soon as anybody listens. `--quick` leaves the installation
out and starts the mesh of this environment.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from .mesh import chat_body
from .report import arguments, finish, show

ROOT = Path(__file__).parent.parent
QUESTION = "Aya has 37 apples. Aya buys 58 more apples. How many apples does Aya have now?"
PORT, GRPC_PORT = 18_000, 18_001
TIMEOUT_S = 1800.0


@contextlib.contextmanager
def started(*, installed: bool) -> Iterator[subprocess.Popen[bytes]]:
    """The mesh, being started the one way or the other."""
    ports = [f"PORT={PORT}", f"GRPC_PORT={GRPC_PORT}"]
    with tempfile.TemporaryDirectory() as folder:
        if installed:
            command = [sys.executable, "-m", "allroads", "up", "--port", str(PORT), "--grpc-port", str(GRPC_PORT)]
        else:
            files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
            for name in files.decode().split("\0")[:-1]:
                target = Path(folder) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
            command = ["make", "-C", folder, "serve", *ports]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=None, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


async def first_answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Ask until somebody answers.

    Raises:
        RuntimeError: the mesh ended, or did not answer in time.
    """
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT}", timeout=60) as client:
        end = time.monotonic() + TIMEOUT_S
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(httpx.TransportError):
                reply = await client.post("/v1/chat/completions", json=chat_body(QUESTION, {}))
                if reply.status_code == 200:
                    content: dict[str, Any] = reply.json()
                    return content
            await asyncio.sleep(0.2)
    raise RuntimeError("no answer came")


def memory_by_service(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Resident memory of each service, MiB; proportional where pages are shared."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        words = child.cmdline()
        if "serve" in words and words.index("serve") + 1 < len(words):
            found[words[words.index("serve") + 1]] = child.memory_full_info().pss / 2**20
    return found


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    before = time.monotonic()
    with started(installed=options.quick) as process:
        reply = asyncio.run(first_answer(process))
        seconds = time.monotonic() - before
        memory = memory_by_service(process)
    show(
        "start",
        ("what", "value"),
        [("seconds to the first answer", seconds), ("installation included", not options.quick)],
    )
    show("memory", ("service", "MiB"), sorted(memory.items()))
    result = {
        "seconds_to_first_answer": seconds,
        "installation_included": not options.quick,
        "memory_mib": memory,
        "answer": reply["choices"][0]["message"]["content"],
    }
    finish(result, as_json=options.json)


if __name__ == "__main__":
    main()

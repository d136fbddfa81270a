"""One service of a mesh as a process, for scripts that talk to it directly."""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from allroads.config import MeshSettings, save_settings

_READY_TIMEOUT_S = 60.0


@contextlib.asynccontextmanager
async def running_service(name: str, settings: MeshSettings) -> AsyncIterator[None]:
    """Start a service by `allroads serve` and stop it at the end; its address must be set.

    Raises:
        RuntimeError: it did not come up; its log is in the message.
    """
    address: str = getattr(settings, name).address
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as log:
        config = Path(directory) / "mesh.yaml"
        save_settings(settings, config)
        command = [sys.executable, "-m", "allroads", "serve", name, "--config", str(config)]
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=subprocess.STDOUT)
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                await asyncio.wait_for(channel.channel_ready(), _READY_TIMEOUT_S)
            yield
        except TimeoutError:
            log.seek(0)
            raise RuntimeError(f"{name} did not come up:\n{log.read().decode(errors='replace')}") from None
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

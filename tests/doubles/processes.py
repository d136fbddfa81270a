"""Services of a mesh as real processes: forked with their imports done, or started the way an operator starts them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import grpc
from allroads.config import MeshSettings, save_settings
from grpc_health.v1 import health_pb2, health_pb2_grpc

from .forks import Fork, fork_server

HEALTH_NAMES = {
    "slm": "allroads.v1.HomeService",
    "router": "allroads.v1.RouterService",
    "gateway": "allroads.v1.GatewayService",
}
TIER_HEALTH_NAME = "allroads.v1.TierService"
"""Of all other services: tiers."""
PLUGIN = Path(__file__).parent / "plugin"


class MeshProcesses:
    """Services of one configuration, in a directory of their own.

    Each runs `python -m allroads serve NAME`. Where starting up is itself under test, `forks=False` has each
    begin as a new interpreter, which costs seconds of imports.
    """

    def __init__(self, settings: MeshSettings, directory: Path, *, forks: bool = True) -> None:
        directory.mkdir(exist_ok=True)
        self.settings = settings.with_addresses(directory)
        self.directory = directory
        self.config = directory / "mesh.yaml"
        save_settings(self.settings, self.config)
        self.processes: dict[str, Fork | subprocess.Popen[bytes]] = {}
        self._forks = forks

    def start(self, *names: str) -> None:
        server = fork_server() if self._forks else None
        environment = os.environ | {"PYTHONPATH": str(PLUGIN), "OMP_NUM_THREADS": "1"}
        for name in names:
            arguments = ["serve", name, "--config", str(self.config)]
            with (self.directory / f"{name}.log").open("ab") as log:
                if server is not None:
                    self.processes[name] = server.start("allroads", arguments, environment, stdout=log, stderr=log)
                    continue
                command = [sys.executable, "-m", "allroads", *arguments]
                self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    @contextmanager
    def running(self, *names: str) -> Iterator[Self]:
        """Start services and wait for the last of them; at the end all must stop as they should."""
        self.start(*names)
        try:
            asyncio.run(self.until_ready(names[-1]))
            yield self
        finally:
            codes = self.stop()
        assert set(codes.values()) == {0}, codes

    async def until_ready(self, *names: str) -> None:
        for name in names:
            address = self.address(name)
            async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                health_name = HEALTH_NAMES.get(name, TIER_HEALTH_NAME)
                watch = stub.Watch(health_pb2.HealthCheckRequest(service=health_name), wait_for_ready=True)
                async with asyncio.timeout(90):
                    async for answer in watch:
                        if answer.status == health_pb2.HealthCheckResponse.SERVING:
                            break
                watch.cancel()

    def address(self, name: str) -> str:
        if name == "gateway":
            return f"127.0.0.1:{self.settings.gateway.grpc_port}"
        return self.settings.internal[name].address

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait(10)

    def stop(self) -> dict[str, int]:
        """Exit codes by service."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        return {name: process.wait(30) for name, process in self.processes.items()}

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

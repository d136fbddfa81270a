"""The cluster of deploy/compose.yaml under test: compose and docker commands, and what containers say of themselves.

Standard library only: deploy/test runs it with the host's own Python.
"""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SERVICES = ("llm", "router", "slm", "gateway")
_COMMAND_TIMEOUT_S = 420
_HEALTH_TIMEOUT_S = 240


class Cluster:
    """Containers by the name of their service."""

    def __init__(self, *files: str) -> None:
        self._compose = [*os.environ.get("COMPOSE", "docker compose").split()]
        for file in files:
            self._compose += ["-f", str(DEPLOY / file)]

    def compose(self, *arguments: str) -> str:
        """Run a compose command; its output."""
        return _run(*self._compose, *arguments)

    def container(self, service: str) -> str:
        """Id of a service's container."""
        return self.compose("ps", "-q", service).strip()

    def inspect(self, service: str) -> dict[str, Any]:
        """What Docker knows of a service's container."""
        content: list[dict[str, Any]] = json.loads(_run("docker", "inspect", self.container(service)))
        return content[0]

    def address(self, service: str) -> str:
        """Its IP address in the mesh's network."""
        networks: dict[str, Any] = self.inspect(service)["NetworkSettings"]["Networks"]
        return next(str(network["IPAddress"]) for name, network in networks.items() if name.endswith("_mesh"))

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside a container, whatever its exit code."""
        return subprocess.run(
            ["docker", "exec", self.container(service), *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_TIMEOUT_S,
        )

    def log(self, service: str) -> str:
        """All that a container has said."""
        command = ["docker", "logs", self.container(service)]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_COMMAND_TIMEOUT_S)
        return result.stdout + result.stderr

    def kill(self, service: str) -> None:
        """SIGKILL."""
        _run("docker", "kill", self.container(service))

    def replace(self, service: str) -> tuple[str, str]:
        """Remove a container and start another, at another address; the old one and the new one."""
        before = self.address(service)
        self.compose("rm", "--stop", "--force", service)
        network = f"{os.environ['COMPOSE_PROJECT_NAME']}_mesh"
        squatter = _run(
            *("docker", "run", "--detach", "--rm", "--network", network, "--ip", before, "--entrypoint", "sleep"),
            *(os.environ["ALLROADS_IMAGE"], "300"),
        ).strip()
        try:
            self.compose("up", "-d", "--no-deps", "--no-build", service)
        finally:
            _run("docker", "rm", "--force", squatter)
        return before, self.address(service)

    def until_healthy(self, *services: str) -> None:
        """Wait until Docker's health check has found them all well."""
        deadline = time.monotonic() + _HEALTH_TIMEOUT_S
        for service in services:
            while (status := self.inspect(service)["State"]["Health"]["Status"]) != "healthy":
                if time.monotonic() > deadline:
                    raise AssertionError(f"{service} is {status}:\n{self.log(service)[-2000:]}")
                time.sleep(0.2)


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_TIMEOUT_S)
    if result.returncode:
        raise AssertionError(f"{' '.join(command)} failed: {result.stderr.strip()[-2000:]}")
    return result.stdout


def leftovers(project: str) -> list[str]:
    """Containers, networks and volumes that a project has."""
    label = f"label=com.docker.compose.project={project}"
    return [
        *_run("docker", "ps", "-aq", "--filter", label).split(),
        *_run("docker", "network", "ls", "-q", "--filter", label).split(),
        *_run("docker", "volume", "ls", "-q", "--filter", label).split(),
    ]


def image_bytes(image: str) -> int:
    """Size of an image with all its layers."""
    return int(_run("docker", "image", "inspect", "--format", "{{.Size}}", image))

"""The services of a mesh as whoever runs them sees them: how each is run, and where its health is asked."""

import asyncio
import importlib
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..config import MeshSettings, MeshTlsSettings, service_names
from ..mesh.certificates import pinned
from .cores import place, usable_cores
from .ports import join_address, reachable_host

Run = Callable[[MeshSettings, asyncio.Event], Coroutine[Any, Any, None]]
"""Serves with these settings until the event is set."""

_LARGER_TIER = "llm"
"""The folder whose code serves every tier but the small model's, and the one that every mesh has."""
_HEALTH_NAMES = {
    "slm": "allroads.v1.HomeService",
    _LARGER_TIER: "allroads.v1.TierService",
    "router": "allroads.v1.RouterService",
    "gateway": "allroads.v1.GatewayService",
}


@dataclass(frozen=True)
class Service:
    """One service of a mesh, as a process of its own or as a task of another."""

    name: str
    command: tuple[str, ...]
    """Program and arguments of a process. Must end within its grace after SIGTERM."""
    address: str
    """gRPC address at which `grpc.health.v1` answers."""
    health_name: str
    """The name that is SERVING once requests may come."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The whole environment of a process."""
    tls: MeshTlsSettings | None = None
    """How its health is asked where it listens with TLS."""


def mesh_services(settings: MeshSettings, config: Path) -> list[Service]:
    """All services in the order in which they start. `config` holds `settings`, all addresses set."""
    gateway_address = join_address(reachable_host(settings.gateway.host), settings.gateway.grpc_port)
    addresses = {name: part.address for name, part in settings.internal.items()} | {"gateway": gateway_address}
    threads = {name: part.num_threads for name, part in settings.internal.items()} | {"gateway": 1}
    num_processes = {name: tier.tensor_parallel for name, tier in settings.tiers.items()}
    gateway_tls = None if settings.gateway.tls is None else pinned(settings.gateway.tls, "gateway.tls")
    # Processes of one model share its cores, a thread on each.
    wanted = {name: count * num_processes.get(name, 1) for name, count in threads.items()}
    cores = place(wanted, usable_cores()) if settings.pin_cores else {}
    return [
        Service(
            name=name,
            command=_serve_command(name, config, cores.get(name, [])),
            address=addresses[name],
            health_name=_HEALTH_NAMES[_code_of(name)],
            environment=child_environment(threads[name]),
            tls=gateway_tls if name == "gateway" else settings.tls,
        )
        for name in service_names(settings)
    ]


def run_of(service: str) -> Run:
    """What `allroads serve` runs. Imported by name and late: a process loads only what it needs itself."""
    folder = _code_of(service)
    run: Callable[..., Coroutine[Any, Any, None]] = importlib.import_module(f"...{folder}.service", __name__).run
    return partial(run, name=service) if folder == _LARGER_TIER else run


def child_environment(num_threads: int) -> dict[str, str]:
    """This process's environment, with what suits a service that shares cores and memory with others."""
    # The resolved file already holds every ALLROADS_ variable; here they would win over options again.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ALLROADS_")}
    defaults = {
        "MALLOC_ARENA_MAX": "2",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "GRPC_VERBOSITY": "ERROR",
    }
    return {**defaults, **inherited, "OMP_NUM_THREADS": str(num_threads), "PYTHONUNBUFFERED": "1"}


def _code_of(service: str) -> str:
    """The folder whose code serves it."""
    return service if service in _HEALTH_NAMES else _LARGER_TIER


def _serve_command(name: str, config: Path, cores: list[int]) -> tuple[str, ...]:
    package = __package__.rpartition(".")[0]
    arguments = ["serve", name, "--config", str(config), "--parent-pid", str(os.getpid())]
    for core in cores:
        arguments += ["--core", str(core)]
    return (sys.executable, "-m", package, *arguments)

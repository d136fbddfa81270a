"""Asks the health service of a mesh's service."""

from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ..config import MeshSettings
from ..errors import StartupError, Unavailable
from ..mesh.channels import open_channel
from .ports import join_address, reachable_host, split_address
from .services import Service, mesh_services

_MAX_MESSAGE_BYTES = 64 * 1024


def service_of(name: str, settings: MeshSettings, config: Path | None) -> Service:
    """A service that can be asked.

    Raises:
        StartupError: there is none of that name, or it has no address.
    """
    services = {service.name: service for service in mesh_services(settings, config or Path())}
    if name not in services:
        raise StartupError(f"there is no service {name!r} in this mesh; there are {', '.join(services)}")
    if not services[name].address:
        key = f"{settings.key_of(name)}.address"
        raise StartupError(f"{key} is not set, and nobody else knows where {name} listens: set it", field=key)
    return services[name]


async def ask_health(service: Service, health_name: str, timeout_s: float) -> None:
    """Return if the answer is SERVING.

    Raises:
        Unavailable: there is another answer, or none in time.
    """
    async with open_channel(_reachable(service.address), _MAX_MESSAGE_BYTES, service.tls) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=health_name), timeout=timeout_s, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"{service.name} does not answer at {service.address}: {error.details()}") from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        raise Unavailable(f"{service.name} is {status.lower().replace('_', ' ')}")


def _reachable(address: str) -> str:
    """Where a service that listens on all addresses is asked."""
    if address.startswith("unix:"):
        return address
    host, port = split_address(address)
    return join_address(reachable_host(host), port)

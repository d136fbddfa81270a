"""Is a service ready? Asked by the standard gRPC health protocol, which tells changes by itself."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ..config import MeshTlsSettings
from ..mesh.channels import open_channel

_MAX_MESSAGE_BYTES = 64 * 1024
_PAUSE_S = 0.1


async def until_ready(address: str, health_name: str, tls: MeshTlsSettings | None = None) -> None:
    """Return once the service of that name is SERVING; a service that is not there yet is waited for."""
    async with open_channel(address, _MAX_MESSAGE_BYTES, tls) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=health_name)
        while True:
            watch = health.Watch(request, wait_for_ready=True)
            try:
                async for response in watch:
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError:
                # Lost while it starts or stops: whoever waits sets the limit.
                pass
            finally:
                watch.cancel()
            await asyncio.sleep(_PAUSE_S)

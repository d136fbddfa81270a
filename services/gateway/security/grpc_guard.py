"""The gateway's gRPC server seen from outside: which calls need a key, and what a connection may cost."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from ...config import LimitSettings
from ...errors import Unauthenticated
from ...mesh.channels import Options
from ...mesh.status import grpc_status
from .key_ring import KeyRing

_OPEN_SERVICES = ("/grpc.health.v1.Health/",)
_MAX_PING_STRIKES = 2

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls pass that bring a key in their metadata, `authorization` or `x-api-key`, and all health checks."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """The handler of the call, or one that ends it with UNAUTHENTICATED."""
        if not handler_call_details.method.startswith(_OPEN_SERVICES):
            sent = {str(name): str(value) for name, value in handler_call_details.invocation_metadata or ()}
            try:
                self._keys.name(sent.get("authorization"), sent.get("x-api-key"))
            except Unauthenticated as error:
                return _refusing(error)
        return await continuation(handler_call_details)


def outside_options(limits: LimitSettings) -> Options:
    """Options of a server that strangers reach. Only pings that come too fast count against a client."""
    return [
        ("grpc.max_concurrent_streams", limits.max_streams),
        # Counts calls that have ended until they are forgotten, and so fails those that waited for them.
        ("grpc.http.overload_protection", 0),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.max_connection_idle_ms", round(limits.max_idle_s * 1000)),
        ("grpc.server_handshake_timeout_ms", round(limits.head_timeout_s * 1000)),
        # Between the two, calls are refused at random.
        ("grpc.max_metadata_size", limits.max_head_bytes),
        ("grpc.absolute_max_metadata_size", limits.max_head_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", round(limits.min_ping_interval_s * 1000)),
        ("grpc.http2.max_ping_strikes", _MAX_PING_STRIKES),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _refusing(error: Unauthenticated) -> _Handler:
    """Fits every kind of call, and reads nothing of it."""

    async def refuse(requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(grpc_status(error), error.message)

    return grpc.stream_stream_rpc_method_handler(refuse)

"""Gives calls for answers a span, or the place in a trace that their clients sent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..errors import AllroadsError
from ..mesh.joined_call import sent_with
from ..mesh.status import grpc_status
from ..mesh.tracing import Tracer
from ..mesh.wire import gateway_pb2
from .grpc_ends import Context
from .request_trace import RequestTrace

_SERVICE = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name


@asynccontextmanager
async def traced_call(tracer: Tracer, context: Context, method: str) -> AsyncIterator[None]:
    """The span of a call ends with this. No interceptor: the call is cancelled, and fails, as it would without."""
    attributes = {"rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": method}
    with RequestTrace(tracer, f"{_SERVICE}/{method}", sent_with(context), attributes) as trace:
        try:
            yield
        except AllroadsError as error:
            trace.add({"rpc.grpc.status_code": grpc_status(error).value[0]})
            raise

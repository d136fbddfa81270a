"""Our error codes on the wire and as gRPC status: one table, both ways."""

import math

import grpc

from ..errors import AllroadsError, Code, error_of
from .wire import common_pb2 as pb

_WIRE: dict[Code, "pb.ErrorCode.ValueType"] = {
    Code.INVALID_ARGUMENT: pb.ERROR_CODE_INVALID_ARGUMENT,
    Code.NOT_FOUND: pb.ERROR_CODE_NOT_FOUND,
    Code.RESOURCE_EXHAUSTED: pb.ERROR_CODE_RESOURCE_EXHAUSTED,
    Code.UNAVAILABLE: pb.ERROR_CODE_UNAVAILABLE,
    Code.DEADLINE_EXCEEDED: pb.ERROR_CODE_DEADLINE_EXCEEDED,
    Code.CANCELLED: pb.ERROR_CODE_CANCELLED,
    Code.INTERNAL: pb.ERROR_CODE_INTERNAL,
    Code.NOT_A_NUMBER: pb.ERROR_CODE_NOT_A_NUMBER,
    Code.OUT_OF_STEP: pb.ERROR_CODE_OUT_OF_STEP,
    Code.CONTEXT_LENGTH_EXCEEDED: pb.ERROR_CODE_CONTEXT_LENGTH_EXCEEDED,
    Code.UNAUTHENTICATED: pb.ERROR_CODE_UNAUTHENTICATED,
}
_CODES = {number: code for code, number in _WIRE.items()}

_STATUS: dict[Code, grpc.StatusCode] = {
    Code.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Code.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.RESOURCE_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Code.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    Code.CANCELLED: grpc.StatusCode.CANCELLED,
    Code.INTERNAL: grpc.StatusCode.INTERNAL,
    Code.NOT_A_NUMBER: grpc.StatusCode.INTERNAL,
    Code.OUT_OF_STEP: grpc.StatusCode.FAILED_PRECONDITION,
    Code.CONTEXT_LENGTH_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    Code.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
}
_FROM_STATUS: dict[grpc.StatusCode, Code] = {
    status: code for code, status in _STATUS.items() if code not in (Code.NOT_A_NUMBER, Code.CONTEXT_LENGTH_EXCEEDED)
}
_LONGEST_MS = 2**32 - 1


def to_wire(error: AllroadsError) -> pb.Error:
    """An error as it travels inside a stream."""
    wire = pb.Error(code=_WIRE[error.code], message=error.message, field=error.field)
    if error.retry_after_s is not None:
        # Rounded up: who comes back too early is refused again.
        wire.retry_after_ms = math.ceil(min(max(error.retry_after_s * 1000, 0), _LONGEST_MS))
    return wire


def from_wire(error: pb.Error) -> AllroadsError:
    """An error that came inside a stream; an unknown code is an internal one."""
    code = _CODES.get(error.code, Code.INTERNAL)
    retry_after_s = error.retry_after_ms / 1000 if error.HasField("retry_after_ms") else None
    return error_of(code, error.message, field=error.field, retry_after_s=retry_after_s)


def grpc_status(error: AllroadsError) -> grpc.StatusCode:
    """The status with which a call fails because of an error."""
    return _STATUS[error.code]


def from_rpc(error: grpc.aio.AioRpcError, peer: str) -> AllroadsError:
    """The error behind a failed call to a peer."""
    code = _FROM_STATUS.get(error.code(), Code.UNAVAILABLE)
    return error_of(code, f"{peer}: {error.details() or error.code().name.lower()}")

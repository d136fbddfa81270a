"""What a failed call or a failed request of a batch tells, as an error of our tree."""

from typing import Protocol, cast

import grpc

from ..errors import AllroadsError, Code, error_of
from ..mesh.wire import common_pb2 as pb

_PREFIX = "ERROR_CODE_"
_CODES = frozenset(code.value for code in Code)
_FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


class _Ended(Protocol):
    """What both of the library's errors are besides exceptions."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> "list[tuple[str, str | bytes]] | None": ...


def error_of_call(error: grpc.RpcError) -> AllroadsError:
    """The error that a gateway ended a call with, or that kept the call from reaching one."""
    ended = cast("_Ended", error)
    status = ended.code()
    trailing = {str(name): str(value) for name, value in ended.trailing_metadata() or ()}
    return error_of(
        _code(trailing.get("code", ""), status),
        ended.details() or status.name.lower().replace("_", " "),
        field=trailing.get("field", ""),
        retry_after_s=_seconds(trailing.get("retry-after")),
    )


def error_of_wire(error: pb.Error) -> AllroadsError:
    """The error that ended one request of a batch."""
    name = pb.ErrorCode.Name(error.code) if error.code in pb.ErrorCode.values() else ""
    code = Code.__members__.get(name.removeprefix(_PREFIX), Code.INTERNAL)
    retry_after_s = error.retry_after_ms / 1000 if error.HasField("retry_after_ms") else None
    return error_of(code, error.message, field=error.field, retry_after_s=retry_after_s)


def _code(told: str, status: grpc.StatusCode) -> Code:
    """What the gateway says in its own words, else what the status means; proxies and the library have only that."""
    if told in _CODES:
        return Code(told)
    return Code.__members__.get(status.name, Code.OUT_OF_STEP if status is _FAILED_PRECONDITION else Code.INTERNAL)


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if seconds >= 0 else None

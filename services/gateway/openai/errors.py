"""Our errors as OpenAI's: one table from code to HTTP status, error type and error code."""

import json
import math
from typing import Any, NamedTuple

from starlette.responses import JSONResponse

from ...errors import AllroadsError, Code, Internal


class _Shape(NamedTuple):
    status: int
    type: str
    code: str | None


_SHAPES: dict[Code, _Shape] = {
    Code.INVALID_ARGUMENT: _Shape(400, "invalid_request_error", None),
    Code.CONTEXT_LENGTH_EXCEEDED: _Shape(400, "invalid_request_error", "context_length_exceeded"),
    Code.UNAUTHENTICATED: _Shape(401, "invalid_request_error", "invalid_api_key"),
    Code.NOT_FOUND: _Shape(404, "invalid_request_error", "model_not_found"),
    Code.RESOURCE_EXHAUSTED: _Shape(429, "rate_limit_error", "rate_limit_exceeded"),
    Code.UNAVAILABLE: _Shape(503, "server_error", "unavailable"),
    Code.DEADLINE_EXCEEDED: _Shape(504, "server_error", "timeout"),
    # The client is gone and reads no answer; the status is for proxies' logs, as nginx does.
    Code.CANCELLED: _Shape(499, "server_error", "cancelled"),
    Code.INTERNAL: _Shape(500, "server_error", "internal_error"),
    Code.NOT_A_NUMBER: _Shape(500, "server_error", "not_a_number"),
    Code.OUT_OF_STEP: _Shape(500, "server_error", "internal_error"),
}


class HttpError(AllroadsError):
    """A request that is wrong as HTTP, before it is one to a model: it brings its own status."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.openai_code = code


def error_body(error: AllroadsError) -> dict[str, Any]:
    """The object that clients get, in a body or in an event."""
    shape = _SHAPES[error.code]
    code = error.openai_code if isinstance(error, HttpError) else shape.code
    return {"error": {"message": error.message, "type": shape.type, "param": error.field or None, "code": code}}


def error_response(error: AllroadsError) -> JSONResponse:
    """The reply to a request that failed before its first byte."""
    status = error.status if isinstance(error, HttpError) else _SHAPES[error.code].status
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if error.code is Code.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status, headers)


def error_event(error: AllroadsError) -> bytes:
    """The event of a stream that fails after its first byte."""
    return b"data: " + json.dumps(error_body(error), ensure_ascii=False).encode() + b"\n\n"


def internal_error() -> Internal:
    """What a client learns of a fault of ours; the log holds the rest."""
    return Internal("internal error; the gateway's log says more")

"""Reads a JSON object from a request's body, within a limit that holds while it comes in."""

import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from ...errors import Cancelled
from .errors import HttpError


async def read_object(request: Request, max_body_bytes: int) -> dict[str, Any]:
    """The object that a client sent.

    Raises:
        HttpError: 415 for another content type, 413 over the limit, 400 for what is no JSON object.
        Cancelled: the client left while sending.
    """
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HttpError(415, f"the content type must be application/json, not {content_type!r}")
    body = await _read(request, max_body_bytes)
    try:
        content = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise HttpError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise HttpError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise HttpError(400, "the body must be a JSON object")
    return content


async def _read(request: Request, max_body_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_body_bytes:
        raise _too_large(max_body_bytes)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_body_bytes:
                raise _too_large(max_body_bytes)
    except ClientDisconnect:
        raise Cancelled("the client left while sending") from None
    return bytes(body)


def _too_large(max_body_bytes: int) -> HttpError:
    return HttpError(413, f"the body has more than {max_body_bytes} bytes")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

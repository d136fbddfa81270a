"""Answers requests for which there is no room in the moment in which they are read.

The event loop reads all connections that have something before it goes on with any request. Of thousands that come
at once, each would so wait for the reading of all; and each that is refused would cost a task and a parser's work.
"""

from http import HTTPStatus

from ...errors import AllroadsError
from ..admission.door import Places
from ..gateway import Gateway
from .errors import error_response

_FIRST_LINES = (b"POST /v1/chat/completions HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.1\r\n")
_MAX_HEAD_BYTES = 16 * 1024
_FOR_THE_PARSER = {b"transfer-encoding", b"expect", b"upgrade", b"origin"}


def read_head(data: bytes) -> dict[bytes, bytes] | None:
    """Headers of what is one whole and plain request for an answer; None for all else, which the parser knows."""
    if not data.startswith(_FIRST_LINES) or (end := data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)) < 0:
        return None
    headers: dict[bytes, bytes] = {}
    for line in data[:end].split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or name != name.strip() or name in headers or name in _FOR_THE_PARSER:
            return None
        headers[name] = value.strip()
    is_whole = headers.get(b"content-length") == b"%d" % (len(data) - end - 4)
    return headers if is_whole else None


def admit(headers: dict[bytes, bytes], gateway: Gateway) -> Places:
    """A first place for the request.

    Raises:
        Refusal, Unavailable: there is none for it now.
    """
    sent = (headers.get(name, b"").decode("latin-1") for name in (b"authorization", b"x-api-key"))
    return gateway.admit(gateway.door.keys.name(*sent), 1)


def refusal(error: AllroadsError, default_headers: list[tuple[bytes, bytes]], *, closes: bool) -> bytes:
    """The reply that the application would give."""
    response = error_response(error)
    headers = [*default_headers, *response.raw_headers, *([(b"connection", b"close")] if closes else [])]
    lines = [b"HTTP/1.1 %d %s" % (response.status_code, HTTPStatus(response.status_code).phrase.encode())]
    lines += [b"%s: %s" % header for header in headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])

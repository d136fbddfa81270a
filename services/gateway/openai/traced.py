"""Gives requests for answers a span, or the place in a trace that their clients sent."""

from collections.abc import Awaitable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import Code
from ...mesh.tracing import Tracer
from ..request_trace import RequestTrace
from .doorkeeper import GENERATING

_FAILURES = {429: Code.RESOURCE_EXHAUSTED, 500: Code.INTERNAL, 503: Code.UNAVAILABLE, 504: Code.DEADLINE_EXCEEDED}


class Traced:
    """Stands right before an application. Who was refused before has no span."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app, self._tracer = app, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer; the span ends with the last byte of its reply."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in GENERATING:
            await self._app(scope, receive, send)
            return
        route = scope["path"]
        sent = Headers(scope=scope).getlist("traceparent")
        attributes = {"http.request.method": "POST", "http.route": route}
        with RequestTrace(self._tracer, f"POST {route}", sent, attributes) as trace:
            await self._app(scope, receive, _watched(send, trace) if trace.is_recorded else send)


def _watched(send: Send, trace: RequestTrace) -> Send:
    """Sends, and tells the trace of the reply's status."""

    def watched(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            trace.add({"http.response.status_code": message["status"]})
            trace.failure = _FAILURES.get(message["status"])
        return send(message)

    return watched

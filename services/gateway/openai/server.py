"""Serves an ASGI application inside our own event loop, under our own signals."""

import asyncio
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...errors import AllroadsError, StartupError
from ...mesh.certificates import outside_context
from ..gateway import Gateway
from .doorstep import admit, read_head, refusal
from .limited_protocol import LimitedProtocol

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""Idle connections are kept longer than clients and proxies keep them, so that it is never we who close."""
_MAX_UNSENT_BYTES = 16 * 1024
_MAX_KERNEL_BYTES = 128 * 1024
"""Left to itself, the kernel keeps megabytes for a client that does not read, and hides it from us."""


class RestServer:
    """An HTTP server on a socket that was bound before, so that a port in use is known at start."""

    def __init__(self, app: ASGIApp, gateway: Gateway, listener: socket.socket, *, grace_s: float) -> None:
        self._listener = listener
        tls = gateway.settings.gateway.tls
        self._server = _Server(
            uvicorn.Config(
                app,
                http=_protocol_at(gateway),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                ssl_context_factory=None if tls is None else lambda _config, _default: outside_context(tls),
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(grace_s) + 1,
            )
        )

    async def run(self) -> None:
        """Serve until `stop` was called and open replies have ended."""
        await self._server.serve([self._listener])

    def stop(self) -> None:
        """Accept no more connections; end when the open replies have."""
        self._server.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        StartupError: the port is in use or the host is not ours; says what to do.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns off Nagle's algorithm, which holds back a reply's body for 40 ms, on sockets that say
        # they are TCP; accepted ones inherit that from here.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise StartupError(f"cannot listen on {host}: {error}", field="gateway.host") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_KERNEL_BYTES)
        listener.setblocking(False)
        listener.bind(address)
        # Two sockets may be bound to one port as long as none listens.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what uses the port, or choose another "
            "by --port or gateway.port",
            field="gateway.port",
        ) from error
    return listener


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the service's business."""
        yield


def _protocol_at(at: Gateway) -> type[HttpToolsProtocol]:
    class Protocol(_Protocol):
        gateway, limits = at, at.settings.gateway.limits

    return Protocol


class _Protocol(LimitedProtocol):
    gateway: Gateway
    _is_plain = True
    """Whether all that came on this connection were whole and plain requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let a reply cut its connection, and keep little for a client that does not read."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_MAX_UNSENT_BYTES)
        self.app_state = {**self.app_state, "abort": transport.abort}

    def data_received(self, data: bytes) -> None:
        """Give a request its place, or refuse it, before others are read."""
        is_at_rest = (self.cycle is None or self.cycle.response_complete) and not self.transport.get_write_buffer_size()
        headers = read_head(data) if self._is_plain and is_at_rest else None
        if headers is None:
            self._is_plain = False
            super().data_received(data)
            return
        try:
            places = admit(headers, self.gateway)
        except AllroadsError as error:
            closes = headers.get(b"connection", b"").lower() == b"close"
            self.transport.write(refusal(error, self.server_state.default_headers, closes=closes))
            if closes:
                self.transport.close()
            else:
                self.rest()
            return
        state = self.app_state
        self.app_state = {**state, "places": places}
        super().data_received(data)
        self.app_state = state
        if self.cycle is None or self.cycle.scope["state"].get("places") is not places:
            # The parser does not take it for a request.
            places.release()

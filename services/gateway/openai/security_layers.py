"""What stands before the application: API keys, and leave for the scripts of other origins' pages."""

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from ...errors import Unauthenticated
from ..gateway import Gateway
from ..security.key_ring import KeyRing
from .errors import error_response

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/version"})
"""Answered without a key: whether the gateway lives, and the playground's page, which asks with a key."""
OPEN_FOLDER = "/playground/"
"""Its parts."""


def add_security(app: FastAPI, gateway: Gateway) -> None:
    """Put before the application what its settings ask for; to be called when all else has been added."""
    settings = gateway.settings.gateway
    if isinstance(gateway.door.keys, KeyRing):
        paths = OPEN_PATHS | ({"/metrics"} if settings.metrics_without_key else set())
        app.add_middleware(KeyGuard, keys=gateway.door.keys, open_paths=paths)
    if settings.cors_origins:
        # Outermost, as a browser asks for leave without a key. Keys come in headers, so cookies are never taken.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("Retry-After",),
            allow_credentials=False,
        )


class KeyGuard:
    """Lets requests pass that bring a key, or ask for what is open."""

    def __init__(self, app: ASGIApp, keys: KeyRing, open_paths: frozenset[str]) -> None:
        self._app, self._keys, self._open_paths = app, keys, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 without a key, else let the application answer."""
        if scope["type"] == "http" and not self._is_open(scope["path"]):
            headers = Headers(scope=scope)
            try:
                self._keys.name(headers.get("authorization"), headers.get("x-api-key"))
            except Unauthenticated as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or path.startswith(OPEN_FOLDER)

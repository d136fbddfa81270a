"""The playground: a page at `/` that talks to this API as any client does. Static files, the same for everybody."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

PATH = "/playground/"
"""Under which the page's parts are served; `/` is the page itself."""

_PAGE = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked for again each time, so that a page of one version never runs with scripts of another.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str

    def answer(self, request: Request) -> Response:
        headers = {**_HEADERS, "ETag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def add_playground(app: FastAPI) -> None:
    """Serve the page and its parts; they are read now, so that no request reaches the disk."""
    for name, file in _read_files().items():
        path = "/" if name == _PAGE else f"{PATH}{name}"
        app.add_route(path, file.answer, methods=["GET"], include_in_schema=False)


def _read_files() -> dict[str, _File]:
    """What lies in the package's folder `gateway/playground`, by name."""
    found: dict[str, _File] = {}
    for entry in files(__package__.rpartition(".")[0]).joinpath("playground").iterdir():
        _, _, suffix = entry.name.rpartition(".")
        if (media_type := _MEDIA_TYPES.get(f".{suffix}")) is not None:
            content = entry.read_bytes()
            etag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
            found[entry.name] = _File(content, media_type, etag)
    return found

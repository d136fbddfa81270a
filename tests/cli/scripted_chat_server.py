"""A REST server that answers chat requests by a script, one action per request."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Action = Callable[["Reply"], None]


class Reply:
    """How an action answers."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._handler = handler

    def fail(self, status: int, body: bytes) -> None:
        self._handler.send_response(status)
        self._handler.send_header("Content-Length", str(len(body)))
        self._handler.end_headers()
        self._handler.wfile.write(body)

    def begin(self) -> None:
        self._handler.send_response(200)
        self._handler.send_header("Content-Type", "text/event-stream")
        self._handler.end_headers()

    def send(self, data: object) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        self._handler.wfile.write(f": keep-alive\n\ndata: {text}\n\n".encode())
        self._handler.wfile.flush()

    def until_client_is_gone(self) -> None:
        """Block until the client has closed the connection."""
        self._handler.rfile.read(1)


class ChatServer(ThreadingHTTPServer):
    """Notes the bodies of requests. `client_gone` is set when an action outlived its client."""

    daemon_threads = True

    def __init__(self, actions: list[Action]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.actions = actions
        self.bodies: list[dict[str, Any]] = []
        self.client_gone = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        Reply(self).fail(200, json.dumps({"object": "list", "data": [{"id": "pair"}]}).encode())

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.actions.pop(0)(Reply(self))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Say nothing."""


@contextmanager
def chat_server(*actions: Action) -> Iterator[ChatServer]:
    with ChatServer(list(actions)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def chunk(text: str, *tiers: int) -> dict[str, Any]:
    routing = {"token_ids": list(range(len(tiers))), "tiers": list(tiers)}
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], "routing": routing}


def finish(reason: str = "stop", *, is_degraded: bool = False, **tokens: int) -> dict[str, Any]:
    routing = {"policy": "r2r", "tokens": tokens, "llm_share": 0.5, "degraded": is_degraded}
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "routing": routing}

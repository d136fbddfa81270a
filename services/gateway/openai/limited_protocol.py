"""HTTP with limits that hold before an application sees a request: sizes, numbers, and time to send it.

A client that sends a byte now and then would else keep a connection, and its memory, for as long as it likes.
"""

import asyncio
from typing import Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...config import LimitSettings
from .doorstep import refusal
from .errors import HttpError

_Awaited = Literal["head", "body"]
_BYTES_AROUND = len(": \r\n")


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, and how long and how much it takes. Subclasses set the limits."""

    limits: LimitSettings
    _awaited: _Awaited | None = None
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = False
    _is_in_body = False
    _num_head_bytes = 0
    _problem: HttpError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let it in, or send it away where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self.refuse(HttpError(503, f"there are {self.limits.max_connections} connections already"))
        else:
            self._await("head")

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will come."""
        self._await(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, and see what is waited for then."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._is_in_head:
            # A header is not told of before it is whole.
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self.limits.max_head_bytes:
                self.refuse(self._too_large())
        if self.transport.is_closing():
            return
        if self._is_in_body:
            self._await("body")
        else:
            is_at_rest = self.cycle is None or self.cycle.response_complete
            self._await("head" if self._is_in_head or is_at_rest else None)

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._is_in_head, self._is_in_body, self._num_head_bytes = True, False, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One more header."""
        super().on_header(name, value)
        if len(self.headers) > self.limits.max_headers:
            self._problem = HttpError(431, f"the request has more than {self.limits.max_headers} headers")
            raise self._problem

    def on_headers_complete(self) -> None:
        """The head is whole."""
        size = len(self.url) + sum(len(name) + len(value) + _BYTES_AROUND for name, value in self.headers)
        if size > self.limits.max_head_bytes:
            self._problem = self._too_large()
            raise self._problem
        self._is_in_head, self._is_in_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._is_in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not take, in the form of all errors."""
        self.refuse(self._problem or HttpError(400, msg))

    def refuse(self, error: HttpError) -> None:
        """Say why, where an answer is owed and none is on its way, and close the connection."""
        self._await(None)
        if self._owes_answer:
            self.transport.write(refusal(error, self.server_state.default_headers, closes=True))
        self.transport.close()

    def rest(self) -> None:
        """A request was answered past the application: wait for the next as long as after any other."""
        self._await(None)
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _await(self, what: _Awaited | None) -> None:
        """From now on wait for that. The time for it runs on if it is waited for already."""
        if what == self._awaited:
            return
        self._awaited = what
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if what is not None:
            seconds = self.limits.head_timeout_s if what == "head" else self.limits.body_timeout_s
            self._timer = self.loop.call_later(seconds, self._on_timeout, what, seconds)

    @property
    def _owes_answer(self) -> bool:
        if self.cycle is None or self.cycle.response_complete:
            # To what comes in now; but a body that still comes belongs to a request that has its answer.
            return not self._is_in_body
        return self._is_in_body and not self.cycle.response_started and not self.pipeline

    def _on_timeout(self, what: _Awaited, seconds: float) -> None:
        if what == "head" and not self._is_in_head:
            # Nothing was asked, so an answer would be taken for that to the next request.
            self.transport.close()
            return
        self.refuse(HttpError(408, f"the request's {what} did not arrive within {seconds:g} s"))

    def _too_large(self) -> HttpError:
        return HttpError(431, f"the request's head has more than {self.limits.max_head_bytes} bytes")

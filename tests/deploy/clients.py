"""Clients of a cluster: one question, and streams that outlive what is done to the cluster meanwhile."""

import http.client
import json
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

QUESTION = "Aya has 37 apples. Aya buys 58 more apples. How many apples does Aya have now?"
_TIMEOUT_S = 60


def _port() -> int:
    return int(os.environ.get("ALLROADS_PORT", "8000"))


def _body(**more: Any) -> str:
    messages = [{"role": "user", "content": QUESTION}]
    return json.dumps({"model": "allroads", "messages": messages, "temperature": 0, "max_tokens": 200, **more})


def ask(**more: Any) -> tuple[int, dict[str, Any]]:
    """Status and body of one answer, 0 where nobody answered."""
    connection = http.client.HTTPConnection("127.0.0.1", _port(), timeout=_TIMEOUT_S)
    try:
        connection.request("POST", "/v1/chat/completions", _body(**more), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, {"error": {"message": repr(error)}}
    finally:
        connection.close()


def is_whole(answer: tuple[int, dict[str, Any]]) -> bool:
    """Whether an answer came from both models."""
    status, body = answer
    return status == 200 and not body["routing"]["degraded"] and body["routing"]["tokens"]["llm"] > 0


def until_whole(limit_s: float) -> float:
    """Ask five times a second until an answer is whole; how long that took."""
    began = time.monotonic()
    while not is_whole(answer := ask()):
        if time.monotonic() - began > limit_s:
            raise AssertionError(f"no whole answer within {limit_s} s; the last was {answer}")
        time.sleep(0.2)
    return time.monotonic() - began


@dataclass
class Stream:
    """One streamed answer on a thread of its own."""

    num_tokens: int = 1900
    text: str = ""
    ending: str = ""
    """`done`, `degraded`, `error: CODE`, `cut off`, `cancelled`, or `status N`; empty while it runs."""
    began: threading.Event = field(default_factory=threading.Event)
    """Text has come, or the end."""
    _cancelled: bool = False

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Hang up at the next event."""
        self._cancelled = True

    def join(self) -> str:
        """Wait for the end; which it was."""
        self._thread.join(_TIMEOUT_S)
        return self.ending or "still open"

    def _read(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", _port(), timeout=_TIMEOUT_S)
        try:
            self.ending = self._events(connection)
        except (OSError, http.client.HTTPException):
            self.ending = "cut off"
        finally:
            connection.close()
            self.began.set()

    def _events(self, connection: http.client.HTTPConnection) -> str:
        body = _body(stream=True, ignore_eos=True, max_tokens=self.num_tokens)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return f"status {response.status}"
        ending = "cut off"
        for line in response:
            if self._cancelled:
                return "cancelled"
            data = line.strip().removeprefix(b"data: ")
            if data == b"[DONE]":
                return ending
            if not line.startswith(b"data: "):
                continue
            event = json.loads(data)
            if error := event.get("error"):
                ending = f"error: {error['code']}"
            for choice in event.get("choices", ()):
                self.text += choice["delta"].get("content") or ""
                if self.text:
                    self.began.set()
                if choice["finish_reason"]:
                    ending = "degraded" if event["routing"]["degraded"] else "done"
        return "cut off"

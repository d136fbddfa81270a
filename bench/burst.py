"""Many requests at once over sockets, by a client so lean that what is measured is the server.

All connections are opened first, then every request is sent, and one loop notes when bytes come.
"""

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_SAMPLE_INTERVAL_S = 0.05
_READ_BYTES = 1 << 16
_TIMEOUT_S = 900.0


@dataclass(eq=False, slots=True)
class Answer:
    """One request's answer. Times are `time.perf_counter()`'s."""

    sent_s: float = 0.0
    first_s: float = 0.0
    """Its first byte."""
    token_s: float = 0.0
    """The first event of a stream that has text."""
    end_s: float = 0.0
    data: bytearray = field(default_factory=bytearray)

    @property
    def status(self) -> int:
        """Of HTTP."""
        return int(self.data.split(b" ", 2)[1])

    @property
    def has_retry_after(self) -> bool:
        """Whether it says when to come back."""
        return b"\r\nretry-after: " in self.data.partition(b"\r\n\r\n")[0].lower()

    @property
    def num_tokens(self) -> int:
        """As the usage has it, in a body or at the end of a stream."""
        return int(self.data.rpartition(b'"completion_tokens":')[2].split(b",")[0].strip(b" }"))


def burst(port: int, bodies: Sequence[bytes], sample: Callable[[], None] = lambda: None) -> list[Answer]:
    """Send all, and wait for all answers. `sample` is called now and then meanwhile.

    Raises:
        TimeoutError: it takes a quarter of an hour.
    """
    answers = [Answer() for _ in bodies]
    selector = selectors.DefaultSelector()
    sockets = []
    for answer in answers:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, answer)
        sockets.append(connection)
    for answer, connection, body in zip(answers, sockets, bodies, strict=True):
        answer.sent_s = time.perf_counter()
        connection.sendall(_HEAD % len(body) + body)
    began_s = sampled_s = time.perf_counter()
    while selector.get_map():
        for key, _ in selector.select(_SAMPLE_INTERVAL_S):
            if _read(key.fileobj, key.data):  # type: ignore[arg-type]
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
        now_s = time.perf_counter()
        if now_s - began_s > _TIMEOUT_S:
            raise TimeoutError("answers did not end")
        if now_s - sampled_s > _SAMPLE_INTERVAL_S:
            sampled_s = now_s
            sample()
    selector.close()
    return answers


_HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n"
)


def _read(connection: socket.socket, answer: Answer) -> bool:
    """Take what has come; whether that was the end."""
    data = connection.recv(_READ_BYTES)
    now_s = time.perf_counter()
    if not data:
        answer.end_s = now_s
        return True
    answer.first_s = answer.first_s or now_s
    if not answer.token_s and b'"text":' in data:
        answer.token_s = now_s
    answer.data += data
    return False

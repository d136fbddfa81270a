"""The line on which the first process of a model tells the others what to do, and on which each notices another's end.

Messages are broadcast over gloo, which is loopback TCP: a process that dies closes its connections, so whoever waits
for it knows at once. One that stands still is given up after `LIMIT_S`; where there is nothing to say, an empty message
says that the first one lives.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import Internal
from .rank_orders import Order, Stop, pack, unpack

logger = logging.getLogger(__name__)

LIMIT_S = 60.0
"""For how long one process of a model waits for another that says nothing."""
HEARTBEAT_S = 5.0
FRAME_NUMBERS = 512
"""Numbers of a message's first part: their count, then as many as fit. All of it is one broadcast in most steps."""
_MAX_NUMBERS = 1 << 24
_MAX_PENDING = 64
"""Orders that wait for the next message."""


class Channel(Protocol):
    """Carries numbers from the first process to all others."""

    def broadcast(self, values: Tensor) -> None:
        """Send int64 numbers, or overwrite them with what was sent; the same count at both ends.

        Raises:
            RuntimeError: a process is gone or stands still.
        """
        ...


class GlooChannel:
    """A `Channel` over a process group with the gloo backend, whose limit holds from the first message on."""

    def __init__(self, group: dist.ProcessGroup, meet: Callable[[], None] = lambda: None) -> None:
        """`meet`: waits for all processes, once, for as long as the first message may take to come."""
        self._group = group
        self._meet: Callable[[], None] | None = meet

    def broadcast(self, values: Tensor) -> None:
        """See `Channel.broadcast`."""
        meet, self._meet = self._meet, None
        if meet is not None:
            meet()
        dist.broadcast(values, 0, group=self._group)


class LeaderLink:
    """The first process's end. Any thread may send."""

    def __init__(self, channel: Channel, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.lost: Future[None] = Future()
        """Fails once another process is gone: nothing can be computed any more."""
        self._channel = channel
        self._heartbeat_s = heartbeat_s
        self._lock = threading.Lock()
        self._pending: list[Order] = []
        self._sent_s = time.monotonic()
        self._stopping = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat of ranks", daemon=True)

    def start(self) -> None:
        """From now on say now and then that this process lives."""
        self._heart.start()

    def queue(self, order: Order) -> None:
        """Send an order with the next one that is sent, before it.

        Raises:
            Internal: another process is gone.
        """
        with self._lock:
            self._pending.append(order)
            if len(self._pending) >= _MAX_PENDING:
                self._flush()

    def send(self, order: Order) -> None:
        """Send an order.

        Raises:
            Internal: another process is gone.
        """
        with self._lock:
            self._pending.append(order)
            self._flush()

    def stop(self) -> None:
        """Tell the others to end, if they can still be told."""
        self._stopping.set()
        if not self.lost.done():
            self.send(Stop())

    def _beat(self) -> None:
        while not self._stopping.wait(self._heartbeat_s):
            with self._lock:
                if self._stopping.is_set() or self.lost.done():
                    return
                if time.monotonic() - self._sent_s < self._heartbeat_s:
                    continue
                try:
                    self._flush()
                except Internal as error:
                    logger.error("%s", error.message)
                    return

    def _flush(self) -> None:
        orders, self._pending = self._pending, []
        values = pack(orders)
        head = torch.zeros(FRAME_NUMBERS, dtype=torch.int64)
        first, rest = values[: FRAME_NUMBERS - 1], values[FRAME_NUMBERS - 1 :]
        head[: len(first) + 1] = torch.tensor([len(values), *first])
        try:
            self._channel.broadcast(head)
            if rest:
                self._channel.broadcast(torch.tensor(rest))
        except RuntimeError as error:
            lost = Internal(f"another process of this model is gone or stands still: {_first_line(error)}")
            if not self.lost.done():
                self.lost.set_exception(lost)
            raise lost from error
        self._sent_s = time.monotonic()


class FollowerLink:
    """The other processes' end. For one thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._head = torch.zeros(FRAME_NUMBERS, dtype=torch.int64)

    def receive(self) -> list[Order]:
        """Wait for the next message; one that only says that the first process lives is empty.

        Raises:
            Internal: the first process is gone or stands still, or what came is no message.
        """
        try:
            self._channel.broadcast(self._head)
            count, *values = self._head.tolist()
            if not 0 <= count <= _MAX_NUMBERS:
                raise Internal(f"a message of {count} numbers")
            if count > len(values):
                rest = torch.zeros(count - len(values), dtype=torch.int64)
                self._channel.broadcast(rest)
                values += rest.tolist()
        except RuntimeError as error:
            raise Internal(f"the first process of this model is gone or stands still: {_first_line(error)}") from error
        return unpack(values[:count])


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]

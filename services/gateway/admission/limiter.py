"""How many requests may be in the mesh at once; the others wait in a bounded line, first come, first served."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from ...errors import AllroadsError, DeadlineExceeded, ResourceExhausted

_NUM_REMEMBERED = 64
_SHORTEST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0


class Ticket:
    """A place in the mesh or in the line for it. Whoever holds one must release it."""

    __slots__ = ("_granted", "_limiter")

    def __init__(self, limiter: "Limiter") -> None:
        self._limiter = limiter
        self._granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, time_left_s: float) -> None:
        """Wait for a place in the mesh, `time_left_s` at most.

        Raises:
            ResourceExhausted: the line was too slow; with a time to come back.
            DeadlineExceeded: the request's own time is over.
        """
        limit_s = min(time_left_s, self._limiter.queue_timeout_s)
        # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the grant.
        await asyncio.wait({self._granted}, timeout=max(limit_s, 0.0))
        if self._granted.done():
            return self._granted.result()
        if time_left_s <= self._limiter.queue_timeout_s:
            raise DeadlineExceeded("the time for this request was over before it could start")
        raise self._limiter.refusal(f"waited {limit_s:g} s for a place")

    def release(self) -> None:
        """Give the place back. May be called again."""
        self._limiter.leave(self)

    def grant(self) -> None:
        """Called by the limiter alone."""
        self._granted.set_result(None)

    def refuse(self, error: AllroadsError) -> None:
        """Called by the limiter alone."""
        self._granted.set_exception(error)
        # A ticket that nobody waits for yet must not warn of an unseen error.
        self._granted.exception()


class Limiter:
    """Places in the mesh and the line for them. Belongs to one event loop."""

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        queue_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self.queue_timeout_s = queue_timeout_s
        self._clock = clock
        self._running: set[Ticket] = set()
        self._waiting: dict[Ticket, None] = {}
        self._ended_s: deque[float] = deque(maxlen=_NUM_REMEMBERED)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_running(self) -> int:
        """Requests in the mesh."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests in line."""
        return len(self._waiting)

    def enter(self) -> Ticket:
        """Take a place in the mesh, else in line.

        Raises:
            ResourceExhausted: the line is full; with a time to come back.
        """
        if len(self._running) < self._max_running:
            ticket = Ticket(self)
            self._running.add(ticket)
            ticket.grant()
        elif len(self._waiting) < self._max_waiting:
            ticket = Ticket(self)
            self._waiting[ticket] = None
        else:
            raise self.refusal(f"{len(self._running)} requests run and {len(self._waiting)} wait")
        self._idle.clear()
        return ticket

    def refusal(self, reason: str) -> ResourceExhausted:
        """The error for whoever must come back later."""
        return ResourceExhausted(f"overloaded: {reason}", retry_after_s=self.retry_after_s())

    def retry_after_s(self) -> float:
        """When the line will have moved by its whole length, by the rate at which requests ended lately."""
        if len(self._ended_s) < 2:
            return _SHORTEST_RETRY_S
        ends_per_s = len(self._ended_s) / max(self._clock() - self._ended_s[0], 1e-3)
        return min(max((len(self._waiting) + 1) / ends_per_s, _SHORTEST_RETRY_S), _LONGEST_RETRY_S)

    async def wait_until_idle(self) -> None:
        """Return when nobody runs and nobody waits."""
        await self._idle.wait()

    def refuse_waiting(self, error: AllroadsError) -> None:
        """Send away all who wait, such as at a stop."""
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting:
            ticket.refuse(error)

    def leave(self, ticket: Ticket) -> None:
        """Give a place back. A ticket that has none is passed over."""
        if ticket in self._running:
            self._running.remove(ticket)
            self._ended_s.append(self._clock())
            self._grant_next()
        else:
            self._waiting.pop(ticket, None)
        if not (self._running or self._waiting):
            self._idle.set()

    def _grant_next(self) -> None:
        if self._waiting and len(self._running) < self._max_running:
            ticket = next(iter(self._waiting))
            del self._waiting[ticket]
            self._running.add(ticket)
            ticket.grant()

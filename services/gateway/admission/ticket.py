"""A request's claim on a place in the mesh, from its arrival to its end."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import AllroadsError, DeadlineExceeded

if TYPE_CHECKING:
    from .limiter import Limiter


class Ticket:
    """A place in the mesh or in the line for it. Whoever holds one must release it."""

    __slots__ = ("_granted", "_limiter", "entered_s", "on_end")

    def __init__(self, limiter: "Limiter") -> None:
        self.entered_s = limiter.clock()
        self.on_end: Callable[[], None] | None = None
        """Called once, when the place is given back."""
        self._limiter = limiter
        self._granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, time_left_s: float) -> None:
        """Wait for a place in the mesh, `time_left_s` at most, and no longer than the line lets anybody wait.

        Raises:
            Refusal: the line was too slow, or another has the place in it; with a time to come back.
            DeadlineExceeded: the request's own time is over.
        """
        queue_left_s = self.entered_s + self._limiter.queue_timeout_s - self._limiter.clock()
        # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the grant.
        await asyncio.wait({self._granted}, timeout=max(min(time_left_s, queue_left_s), 0.0))
        if self._granted.done():
            return self._granted.result()
        self.release()
        if time_left_s <= queue_left_s:
            raise DeadlineExceeded("the time for this request was over before it could start")
        message = f"waited {self._limiter.queue_timeout_s:g} s for a place"
        raise self._limiter.refusal("queue_timeout", message)

    def release(self, *, has_run: bool = True) -> None:
        """Give the place back. May be called again. The rate of ends is told by those that have run."""
        self._limiter.leave(self, has_run=has_run)
        if (on_end := self.on_end) is not None:
            self.on_end = None
            on_end()

    def grant(self) -> None:
        """Called by the limiter alone."""
        self._granted.set_result(None)

    def refuse(self, error: AllroadsError) -> None:
        """Called by the limiter alone."""
        self._granted.set_exception(error)
        # A ticket that nobody waits for yet must not warn of an unseen error.
        self._granted.exception()

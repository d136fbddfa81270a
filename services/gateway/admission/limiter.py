"""How many requests may be in the mesh at once; the others wait in a bounded line that is fair between keys.

A new request takes a place in the mesh where one is free, else in the line, else it is refused, as is one that
could not start in time. Nothing that is done for a refusal grows with the number of requests.
"""

import asyncio
import time
from collections.abc import Callable

from ...errors import AllroadsError
from .fair_queue import FairQueue
from .promise import Promise
from .recent_ends import RecentEnds
from .refusal import Reason, Refusal
from .ticket import Ticket

_SHORTEST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0


class Limiter:
    """Places in the mesh and the line for them. Belongs to one event loop."""

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        queue_timeout_s: float,
        max_waiting_per_key: int | None = None,
        starts_per_s: int | None = None,
        promise: Promise | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `starts_per_s` nobody starts but by `start_next`, for which `regulation.pace_starts` must run."""
        self.max_running = max_running
        self.starts_per_s = starts_per_s
        self.clock = clock
        self._max_waiting = max_waiting
        self._max_waiting_per_key = min(max_waiting, max_waiting_per_key or max_waiting)
        self._promise = promise or Promise()
        self.queue_timeout_s = min(queue_timeout_s, self._promise.max_first_token_s or queue_timeout_s)
        self._limit = self._promise.limit(max_running)
        self._running: set[Ticket] = set()
        self._line: FairQueue[Ticket] = FairQueue()
        self._ends = RecentEnds()
        self._idle = asyncio.Event()
        self._idle.set()
        self._startable = asyncio.Event()

    @property
    def num_running(self) -> int:
        """Requests in the mesh."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    @property
    def limit(self) -> int:
        """Requests that may be in the mesh now; more may be there since it was lowered."""
        return self._limit

    @property
    def most_places(self) -> int:
        """Places that one request can ever have at once."""
        return self._max_waiting_per_key + (self.max_running if self.starts_per_s is None else 0)

    def set_limit(self, limit: int) -> None:
        """Let so many run, from 1 to `max_running`. Those that run go on, and those that wait start where they may."""
        self._limit = max(1, min(limit, self.max_running))
        self._advance()

    def check(self, key: str, num_places: int, time_left_s: float) -> None:
        """Whether a request of a key would get its places now, as `enter` decides.

        Raises:
            Refusal: there is no room in line, or it could not start or write its first token in time.
        """
        num_waiting = len(self._line)
        num_to_wait = max(num_places - self._num_free, 0)
        if num_waiting + num_to_wait > self._max_waiting and not self._may_displace(key, num_places):
            raise self.refusal("line_full", f"{len(self._running)} requests run and {num_waiting} wait")
        if num_to_wait and self._line.num_of(key) + num_to_wait > self._max_waiting_per_key:
            raise self.refusal("key_line_full", f"{self._line.num_of(key)} requests of this key wait")
        if self._running:
            # Where nobody runs, nothing would correct a model that is too gloomy.
            self._check_time(key, num_places, time_left_s)

    def enter(self, key: str = "", *, num_places: int = 1, time_left_s: float = float("inf")) -> list[Ticket]:
        """Take places in the mesh, else in line: all of them or none.

        Where the line is full, a request with one place of a key that has nothing waiting displaces the newest
        request of the key that has most, which is refused. That is done only where that key has more than its
        share: more than one, and more than the line divided by the keys, the new one among them.

        Args:
            key: whom the request is from.
            num_places: one for each of its prompts.
            time_left_s: in which it must have ended.

        Raises:
            Refusal: there is no room in line, or it could not start or write its first token in time.
        """
        self.check(key, num_places, time_left_s)
        tickets = [Ticket(self) for _ in range(num_places)]
        for ticket in tickets:
            if self._num_free:
                self._start(ticket)
                continue
            if len(self._line) == self._max_waiting:
                displaced = self._line.newest_of_longest()
                self._line.remove(displaced)
                displaced.refuse(self.refusal("displaced", "others have nothing waiting, and this key has most"))
            self._line.push(key, ticket)
        self._idle.clear()
        self._note_startable()
        return tickets

    def refusal(self, reason: Reason, message: str, retry_after_s: float | None = None) -> Refusal:
        """The error for whoever must come back later: then, or when the line will have moved by its length."""
        seconds = self._line_s() if retry_after_s is None else retry_after_s
        seconds = min(max(seconds, _SHORTEST_RETRY_S), _LONGEST_RETRY_S)
        return Refusal(reason, f"overloaded: {message}", retry_after_s=seconds)

    async def wait_until_idle(self) -> None:
        """Return when nobody runs and nobody waits."""
        await self._idle.wait()

    async def until_startable(self) -> None:
        """Return when somebody waits and a place is free."""
        await self._startable.wait()

    def start_next(self) -> None:
        """Start whose turn it is, if somebody waits and a place is free."""
        if self._line and len(self._running) < self._limit:
            self._start(self._line.pop())
        self._note_startable()

    def refuse_waiting(self, error: AllroadsError) -> None:
        """Send away all who wait, such as at a stop."""
        while self._line:
            self._line.pop().refuse(error)
        self._note_startable()

    def leave(self, ticket: Ticket, *, has_run: bool) -> None:
        """Give a place back. A ticket that has none is passed over."""
        if ticket in self._running:
            self._running.remove(ticket)
            if has_run:
                self._ends.add(self.clock())
        else:
            self._line.remove(ticket)
        self._advance()
        if not (self._running or self._line):
            self._idle.set()

    @property
    def _num_free(self) -> int:
        """Places that a new request may take at once."""
        return 0 if self._line or self.starts_per_s is not None else max(self._limit - len(self._running), 0)

    def _advance(self) -> None:
        if self.starts_per_s is None:
            while self._line and len(self._running) < self._limit:
                self._start(self._line.pop())
        self._note_startable()

    def _start(self, ticket: Ticket) -> None:
        self._running.add(ticket)
        ticket.grant()

    def _note_startable(self) -> None:
        if self._line and len(self._running) < self._limit:
            self._startable.set()
        else:
            self._startable.clear()

    def _may_displace(self, key: str, num_places: int) -> bool:
        share = max(self._max_waiting / (self._line.num_keys + 1), 1)
        return num_places == 1 and not self._line.num_of(key) and self._line.longest > share

    def _check_time(self, key: str, num_places: int, time_left_s: float) -> None:
        """Whether the last of a request's places comes soon enough, by what the model expects."""
        turns = self._line.num_ahead(key) + num_places
        place = max(turns - max(self._limit - len(self._running), 0), 0)
        expected_s = self._promise.first_token_s(place, min(len(self._running) + num_places, self._limit))
        if self.starts_per_s is not None:
            expected_s = max(expected_s or 0.0, turns / self.starts_per_s)
        if expected_s is None:
            return
        most_s = self._promise.max_first_token_s
        if most_s is not None and expected_s > most_s:
            message = f"the first token would take about {expected_s:.3g} s, and {most_s:g} s are promised"
            raise self.refusal("first_token", message, expected_s - most_s)
        if expected_s > time_left_s:
            message = f"it would begin in about {expected_s:.3g} s, and has {time_left_s:.3g} s"
            raise self.refusal("no_time", message, expected_s - time_left_s)

    def _line_s(self) -> float:
        """Until the line will have moved by its whole length."""
        ends_per_s = self._promise.ends_per_s() or self._ends.per_s(self.clock())
        per_s = min((rate for rate in (ends_per_s, self.starts_per_s) if rate is not None), default=None)
        return 0.0 if per_s is None else (len(self._line) + 1) / per_s

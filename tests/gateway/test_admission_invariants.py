"""Whatever comes, leaves, and is allowed: the limiter's bounds hold, and every place comes back."""

import asyncio
from collections import Counter

from allroads.gateway.admission.limiter import Limiter
from allroads.gateway.admission.refusal import Refusal
from allroads.gateway.admission.ticket import Ticket
from hypothesis import given, settings
from hypothesis import strategies as st

MAX_RUNNING, MAX_WAITING, PER_KEY = 4, 8, 5
ENTER = st.tuples(st.just("enter"), st.sampled_from("abcd"), st.integers(1, 3))
LEAVE = st.tuples(st.just("leave"), st.just(""), st.integers(0, 20))
LIMIT = st.tuples(st.just("limit"), st.just(""), st.integers(0, 6))


class Watched:
    """What became of each ticket, as one who waits for it would see."""

    def __init__(self) -> None:
        self.tickets: dict[Ticket, tuple[str, asyncio.Task[None]]] = {}

    def add(self, key: str, ticket: Ticket) -> None:
        self.tickets[ticket] = key, asyncio.create_task(ticket.wait(60))

    async def settle(self) -> tuple[list[Ticket], Counter[str], int]:
        """Tickets with a place in the mesh, those that wait by key, and how many were displaced since."""
        for _ in range(3):
            await asyncio.sleep(0)
        running, waiting, num_displaced = [], Counter[str](), 0
        for ticket, (key, task) in list(self.tickets.items()):
            if not task.done():
                waiting[key] += 1
            elif (error := task.exception()) is None:
                running.append(ticket)
            else:
                assert isinstance(error, Refusal)
                assert error.reason == "displaced"
                num_displaced += 1
                self.leave(ticket)
        return running, waiting, num_displaced

    def leave(self, ticket: Ticket) -> None:
        self.tickets.pop(ticket)[1].cancel()
        ticket.release()


async def play(operations: list[tuple[str, str, int]]) -> None:
    line = Limiter(max_running=MAX_RUNNING, max_waiting=MAX_WAITING, queue_timeout_s=60, max_waiting_per_key=PER_KEY)
    watched = Watched()
    for name, key, number in operations:
        before, waiting_before, _ = await watched.settle()
        may_displace = False
        if name == "enter":
            over_key = waiting_before[key] + number > PER_KEY
            over_all = len(before) + waiting_before.total() + number > line.limit + MAX_WAITING
            may_displace = number == 1 and not waiting_before[key]
            try:
                tickets = line.enter(key, num_places=number)
            except Refusal:
                tickets = []
            assert len(tickets) == number or (not tickets and (over_key or over_all or len(before) > line.limit))
            for ticket in tickets:
                watched.add(key, ticket)
        elif name == "leave" and watched.tickets:
            watched.leave(list(watched.tickets)[number % len(watched.tickets)])
        elif name == "limit":
            line.set_limit(number)
        running, waiting, num_displaced = await watched.settle()
        assert (line.num_running, line.num_waiting) == (len(running), waiting.total())
        assert num_displaced <= may_displace
        assert len(running) <= max(line.limit, len(before))
        assert not waiting or len(running) >= line.limit
        assert waiting.total() <= MAX_WAITING
        assert max(waiting.values(), default=0) <= PER_KEY
    for ticket in list(watched.tickets):
        watched.leave(ticket)
    await line.wait_until_idle()
    assert (line.num_running, line.num_waiting) == (0, 0)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(ENTER, ENTER, LEAVE, LIMIT), max_size=60))
def test_bounds_hold(operations: list[tuple[str, str, int]]) -> None:
    asyncio.run(play(operations))

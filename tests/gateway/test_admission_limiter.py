"""The limiter: places, the line's bounds, who is displaced, and what is refused at arrival."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest
from allroads.errors import DeadlineExceeded, Unavailable
from allroads.gateway.admission.limiter import Limiter
from allroads.gateway.admission.outlook import PredictedService
from allroads.gateway.admission.promise import Promise
from allroads.gateway.admission.refusal import Reason, Refusal
from allroads.gateway.admission.regulation import keep_promise, pace_starts
from allroads.gateway.admission.ticket import Ticket


class Outlook(PredictedService):
    """Says what a test sets."""

    def __init__(self, *, most: int | None = None, seconds: float | None = None, rate: float | None = None) -> None:
        super().__init__()
        self.most, self.seconds, self.rate = most, seconds, rate
        self.asked: list[tuple[int, int]] = []

    def capacity(self, min_tokens_per_s: float) -> int | None:
        return self.most

    def first_token_s(self, num_waiting: int, num_running: int) -> float | None:
        self.asked.append((num_waiting, num_running))
        return self.seconds

    def ends_per_s(self) -> float | None:
        return self.rate


class Clock:
    """The limiter's time."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def limiter(
    max_running: int = 1,
    max_waiting: int = 2,
    *,
    per_key: int | None = None,
    starts_per_s: int | None = None,
    promise: Promise | None = None,
    clock: Clock | None = None,
) -> Limiter:
    return Limiter(
        max_running=max_running,
        max_waiting=max_waiting,
        queue_timeout_s=60.0,
        max_waiting_per_key=per_key,
        starts_per_s=starts_per_s,
        promise=promise,
        clock=clock or Clock(),
    )


def enter(line: Limiter, key: str = "") -> Ticket:
    (ticket,) = line.enter(key)
    return ticket


def refused(line: Limiter, key: str = "", num_places: int = 1, time_left_s: float = 600.0) -> tuple[Reason, float]:
    before = line.num_running, line.num_waiting
    with pytest.raises(Refusal) as refusal:
        line.enter(key, num_places=num_places, time_left_s=time_left_s)
    assert (line.num_running, line.num_waiting) == before
    assert refusal.value.retry_after_s is not None
    return refusal.value.reason, refusal.value.retry_after_s


async def fate(ticket: Ticket) -> Reason:
    with pytest.raises(Refusal) as refusal:
        await ticket.wait(60)
    return refusal.value.reason


async def test_the_line_is_served_in_order_and_who_leaves_frees_a_place() -> None:
    line = limiter()
    first, second, third = enter(line), enter(line), enter(line)
    assert refused(line)[0] == "line_full"
    second.release()
    fourth = enter(line)
    first.release()
    first.release()
    await third.wait(60)
    assert (line.num_running, line.num_waiting) == (1, 1)
    third.release()
    await fourth.wait(60)
    fourth.release()
    await line.wait_until_idle()
    assert (line.num_running, line.num_waiting) == (0, 0)


async def test_a_wait_ends_by_queue_time_or_deadline_and_frees_the_place() -> None:
    clock = Clock()
    line = limiter(clock=clock)
    enter(line)
    slow, short = enter(line), enter(line)
    clock.now_s = 59.99
    assert await fate(slow) == "queue_timeout"
    assert line.num_waiting == 1
    with pytest.raises(DeadlineExceeded):
        await short.wait(0.001)
    assert line.num_waiting == 0
    stopped = enter(line)
    line.refuse_waiting(Unavailable("stopping"))
    with pytest.raises(Unavailable):
        await stopped.wait(60)


async def test_a_grant_does_not_outlive_a_cancelled_wait() -> None:
    line = limiter()
    first, second = enter(line), enter(line)
    waiter = asyncio.create_task(second.wait(60))
    await asyncio.sleep(0)
    first.release()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    second.release()
    assert line.num_running == 0


async def test_keys_take_turns() -> None:
    line = limiter(max_waiting=100)
    running = enter(line, "many")
    many = [enter(line, "many") for _ in range(50)]
    one, other = enter(line, "one"), enter(line, "other")
    order: list[Ticket] = []

    async def take_turn(ticket: Ticket) -> None:
        await ticket.wait(60)
        order.append(ticket)
        ticket.release()

    turns = [asyncio.create_task(take_turn(ticket)) for ticket in (*many, one, other)]
    running.release()
    await asyncio.gather(*turns)
    assert order == [many[0], one, other, *many[1:]]


async def test_a_key_may_not_fill_the_line_where_its_part_is_bounded() -> None:
    line = limiter(max_waiting=10, per_key=2)
    for _ in range(3):
        enter(line, "a")
    assert refused(line, "a")[0] == "key_line_full"
    assert refused(line, "b", num_places=3)[0] == "key_line_full"
    assert len(line.enter("b", num_places=2)) == 2
    assert line.most_places == 3
    assert limiter(4, 10, per_key=50).most_places == 14


async def test_several_places_are_taken_all_or_none() -> None:
    line = limiter(2, 2)
    assert len(line.enter("a", num_places=3)) == 3
    assert (line.num_running, line.num_waiting) == (2, 1)
    assert refused(line, "b", num_places=2)[0] == "line_full"
    enter(line, "b")


async def test_a_new_key_displaces_the_newest_of_the_key_that_has_most() -> None:
    line = limiter(max_waiting=4)
    enter(line, "a")
    waiting = [enter(line, "a") for _ in range(4)]
    assert refused(line, "a")[0] == "line_full"
    assert refused(line, "b", num_places=2)[0] == "line_full"
    enter(line, "b")
    assert await fate(waiting[3]) == "displaced"
    assert line.num_waiting == 4
    # It has something waiting now.
    assert refused(line, "b")[0] == "line_full"
    enter(line, "c")
    assert await fate(waiting[2]) == "displaced"
    # Two of four are more than a fourth, and one is not more than one.
    enter(line, "d")
    assert await fate(waiting[1]) == "displaced"
    assert refused(line, "e")[0] == "line_full"


async def test_nobody_is_displaced_who_has_no_more_than_the_share() -> None:
    line = limiter(max_waiting=6)
    enter(line, "a")
    for key in "aabbcc":
        enter(line, key)
    enter(line, "d")
    assert line.num_waiting == 6
    line = limiter(max_waiting=2)
    for key in "aab":
        enter(line, key)
    assert refused(line, "c")[0] == "line_full"


async def test_a_lower_limit_lets_run_who_runs_and_a_higher_one_starts_who_waits() -> None:
    line = limiter(4, 10)
    running = [enter(line) for _ in range(4)]
    waiting = [enter(line) for _ in range(3)]
    line.set_limit(2)
    assert (line.num_running, line.limit) == (4, 2)
    running[0].release()
    running[1].release()
    assert (line.num_running, line.num_waiting) == (2, 3)
    running[2].release()
    assert (line.num_running, line.num_waiting) == (2, 2)
    line.set_limit(100)
    assert (line.num_running, line.num_waiting, line.limit) == (4, 0, 4)
    line.set_limit(0)
    assert line.limit == 1
    for ticket in waiting:
        await ticket.wait(60)


async def test_the_limit_is_what_keeps_the_promise() -> None:
    outlook = Outlook()
    assert Promise(outlook, 10.0).limit(8) == 8
    for most, limit in ((3, 3), (0, 1), (99, 8)):
        outlook.most = most
        assert Promise(outlook, 10.0).limit(8) == limit
    assert Promise(outlook).limit(8) == 8
    outlook.most = 2
    promise = Promise(outlook, 10.0)
    line = limiter(8, promise=promise)
    assert line.limit == 2
    outlook.most = 5
    keeper = asyncio.create_task(keep_promise(promise, line))
    await asyncio.sleep(0)
    assert line.limit == 5
    keeper.cancel()


async def test_who_cannot_have_the_first_token_in_time_is_refused_at_arrival() -> None:
    outlook = Outlook(seconds=7.5)
    line = limiter(2, 10, promise=Promise(outlook, max_first_token_s=4.0))
    enter(line)
    assert outlook.asked == []
    assert refused(line) == ("first_token", 3.5)
    outlook.seconds = 3.9
    for _ in range(4):
        enter(line, "a")
    enter(line, "b")
    assert outlook.asked == [(0, 2), (0, 2), (1, 2), (2, 2), (3, 2), (2, 2)]
    line.enter("b", num_places=2)
    assert outlook.asked[-1] == (5, 2)
    assert line.queue_timeout_s == 4.0
    for seconds in (None, float("nan"), float("inf"), -1.0):
        outlook.seconds = seconds
        enter(line)


async def test_a_request_that_would_be_over_before_it_began_is_refused_at_arrival() -> None:
    outlook = Outlook(seconds=7.5)
    line = limiter(1, 10, promise=Promise(outlook))
    enter(line)
    assert refused(line, time_left_s=5.0) == ("no_time", 2.5)
    line.enter(time_left_s=8.0)


async def test_the_time_to_come_back_is_the_models_else_by_the_rate_of_late() -> None:
    outlook, clock = Outlook(), Clock()
    line = limiter(1, 5, promise=Promise(outlook), clock=clock)
    for _ in range(10):
        ticket = enter(line)
        clock.now_s += 2.0
        ticket.release()
    for _ in range(6):
        enter(line)
    reason, seconds = refused(line)
    assert reason == "line_full"
    assert seconds == pytest.approx(6 * 18 / 10)
    outlook.rate = 0.25
    assert refused(line) == ("line_full", 24.0)
    outlook.rate = 0.01
    assert refused(line) == ("line_full", 60.0)
    outlook.rate = 1000.0
    assert refused(line) == ("line_full", 1.0)


async def test_starts_wait_their_turn() -> None:
    line = limiter(2, 5, starts_per_s=1000)
    tickets = [enter(line) for _ in range(3)]
    assert (line.num_running, line.num_waiting, line.most_places) == (0, 3, 5)
    tickets[1].release()
    pace = asyncio.create_task(pace_starts(line))
    await tickets[0].wait(60)
    await tickets[2].wait(60)
    late = enter(line)
    assert (line.num_running, line.num_waiting) == (2, 1)
    tickets[0].release()
    await late.wait(60)
    pace.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pace


async def test_the_pace_counts_for_times_in_line() -> None:
    line = limiter(10, 10, starts_per_s=2, promise=Promise(Outlook(), max_first_token_s=2.0))
    enter(line)
    line.start_next()
    for _ in range(4):
        enter(line)
    assert refused(line) == ("first_token", 1.0)


async def test_no_more_start_in_a_window_than_the_pace_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    async def sleep(seconds: float) -> None:
        clock.now_s += seconds

    monkeypatch.setattr("asyncio_throttle.throttler.time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr("asyncio_throttle.throttler.asyncio", SimpleNamespace(sleep=sleep))
    line = limiter(100, 100, starts_per_s=4)
    started_s: list[float] = []
    start_next = line.start_next

    def start() -> None:
        started_s.append(clock.now_s)
        start_next()

    monkeypatch.setattr(line, "start_next", start)
    tickets = [enter(line) for _ in range(6)]
    pace = asyncio.create_task(pace_starts(line))
    await tickets[-1].wait(60)
    pace.cancel()
    assert len(started_s) == 6
    assert all(0.25 <= later - earlier <= 0.2751 for earlier, later in pairwise(started_s))

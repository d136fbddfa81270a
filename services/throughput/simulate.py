"""Discrete-event simulation of a setting: what the chains are checked against.

Each tier is a server that runs one batch at a time. The home begins a step with all rows that are there as soon as it
is idle. A larger tier takes all that wait when it is idle and as many wait as its threshold, or as could still come,
or when the oldest has waited for the flush time-out. While another tier is in a step, a step goes on at the pace of
the co-running curve, else at that of the alone curve; a step that is overlapped for a part takes a time in between.

Events are steps and ways, never tokens. All chance comes from the seed.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from math import floor, isnan, nan
from random import Random

import simpy

from .moving_parts import Request, Server
from .setting import Setting
from .tally import Simulated, Tally

_SAME_S = 1e-9
"""Events that are no further apart happen together: what ends is put in its place before anything begins."""


def simulate(
    setting: Setting,
    num_requests: int,
    thresholds: Sequence[int],
    *,
    num_cycles: int,
    seed: int = 0,
    flush_s: float | None = None,
) -> Simulated:
    """Run a closed system of so many requests until so many visits came back, after a warm-up that is dropped.

    Args:
        setting: the mesh and its load.
        num_requests: requests at once.
        thresholds: one for each larger tier, from 1 on.
        num_cycles: visits of all requests together that are counted; 20,000 leave an error of about 1 %.
        seed: of all chance.
        flush_s: a larger tier launches whatever waits once the oldest has waited so long. None waits without end.

    Raises:
        ValueError: an argument is out of range, or all requests could wait at tiers none of which launches.
    """
    if num_requests < 1 or num_cycles < 1:
        raise ValueError(f"num_requests and num_cycles must be at least 1, not {num_requests} and {num_cycles}")
    if len(thresholds) != len(setting.larger) or min(thresholds) < 1:
        raise ValueError(f"{len(setting.larger)} thresholds from 1 on are needed, not {list(thresholds)}")
    if flush_s is not None and not flush_s >= 0.0:
        raise ValueError(f"flush_s must not be negative, not {flush_s}")
    effective = [min(threshold, num_requests) for threshold in thresholds]
    if flush_s is None and sum(threshold - 1 for threshold in effective) >= num_requests:
        raise ValueError(
            f"thresholds {list(thresholds)} can make all {num_requests} requests wait for ever: "
            "lower them until the sum of B - 1 is below the number of requests, or set flush_s"
        )
    run = _Run(setting, num_requests, effective, Random(seed), flush_s)
    run.go(max(num_cycles // 10, 4 * num_requests))
    run.count_anew()
    run.go(num_cycles)
    return run.tally.figures(num_requests, thresholds, setting.tokens_per_cycle)


class _Run:
    """The system and its clock."""

    def __init__(
        self, setting: Setting, num_requests: int, thresholds: list[int], random: Random, flush_s: float | None
    ) -> None:
        self._setting = setting
        self._thresholds = thresholds
        self._flush_s = flush_s
        self._random = random.random
        self._clock = simpy.Environment()
        tiers = (setting.home, *setting.larger)
        self._servers = [Server(tier, index, num_requests, random) for index, tier in enumerate(tiers)]
        self._home, *self._larger = self._servers
        self._shares = list(accumulate(setting.shares))
        self._answers_per_cycle = setting.tokens_per_cycle / setting.tokens_per_request
        self._requests = [Request() for _ in range(num_requests)]
        self.tally = Tally(len(tiers))
        self._begin_answers(self._requests)
        self._settle()

    def go(self, num_cycles: int) -> None:
        """Run until so many more visits came back."""
        target = self.tally.num_cycles + num_cycles
        while self.tally.num_cycles < target:
            self._clock.step()
        for server in self._servers:
            if server.rows:
                self.tally.step_ended(server.index, server.began, self._clock.now)

    def count_anew(self) -> None:
        """Forget what was counted."""
        self.tally = Tally(len(self._servers), self._clock.now)

    # Requests.

    def _begin_answers(self, requests: list[Request]) -> None:
        for request in requests:
            self._begin_stay(request)
            request.at_home = True

    def _begin_stay(self, request: Request) -> None:
        request.stay += 1
        request.left = self._home.lengths.draw()
        request.ahead = 0

    def _hand_off(self, requests: list[Request]) -> None:
        groups: dict[int, list[Request]] = {}
        for request in requests:
            request.at_home = False
            self._begin_stay(request)
            chosen = min(bisect_right(self._shares, self._random()), len(self._larger) - 1)
            request.visit_left = self._larger[chosen].lengths.draw()
            request.visit_began = False
            groups.setdefault(chosen, []).append(request)
        for chosen, group in groups.items():
            self._later(self._setting.hand_off_s / 2, partial(self._arrive, self._larger[chosen], group))

    def _arrive(self, server: Server, requests: list[Request]) -> None:
        for request in requests:
            request.arrived = self._clock.now
        server.waiting += requests

    def _come_back(self, requests: list[Request]) -> None:
        self.tally.came_back(len(requests), self._clock.now)
        handed_off: list[Request] = []
        pauses: dict[int, list[Request]] = {}
        for request in requests:
            self._token(request)
            if num_answers := floor(self._answers_per_cycle + self._random()):
                request.last_token = nan
                request.ahead = self._setting.max_ahead
                pauses.setdefault(num_answers, []).append(request)
            elif self._random() < self._setting.confirmed:
                for _ in range(min(request.ahead, request.ahead + request.left - 1)):
                    self._token(request)
                request.at_home = True
                if request.left < 1:
                    handed_off.append(request)
            else:
                self._begin_stay(request)
                request.at_home = True
        self._hand_off(handed_off)
        for num_answers, group in pauses.items():
            self._later(self._setting.request_s * num_answers, partial(self._begin_answers, group))

    def _token(self, request: Request) -> None:
        now = self._clock.now
        if not isnan(request.last_token):
            self.tally.gap(now - request.last_token)
        request.last_token = now

    # Steps.

    def _home_ended(self, rows: list[tuple[Request, int]]) -> None:
        ended = []
        for request, stay in rows:
            if request.stay != stay:
                continue
            request.left -= 1
            if not request.at_home:
                request.ahead += 1
            elif request.left < 1:
                ended.append(request)
            else:
                self._token(request)
        self._hand_off(ended)

    def _larger_ended(self, server: Server, rows: list[tuple[Request, int]]) -> None:
        ended, go_on = [], []
        for request, _ in rows:
            request.visit_left -= 1
            if request.visit_left:
                self._token(request)
                go_on.append(request)
            else:
                ended.append(request)
        self._arrive(server, go_on)
        if ended:
            self._later(self._setting.hand_off_s / 2, partial(self._come_back, ended))

    def _step_ended(self, server: Server, event: simpy.Event) -> None:
        if server.timer is event:
            rows, server.rows, server.timer = server.rows, [], None
            self.tally.step_ended(server.index, server.began, self._clock.now)
            if server is self._home:
                self._home_ended(rows)
            else:
                self._larger_ended(server, rows)
        self._settle()

    def _settle(self) -> None:
        """Begin what can begin, once all that happens at this instant has happened."""
        if self._clock.peek() <= self._clock.now + _SAME_S:
            return
        for server in self._servers:
            if not server.rows:
                self._begin(server, self._home_rows() if server is self._home else self._larger_rows(server))
        together = sum(bool(server.rows) for server in self._servers) > 1
        for server in self._servers:
            if server.rows:
                self._pace(server, (server.co_running if together else server.alone)[len(server.rows)])

    def _begin(self, server: Server, requests: list[Request]) -> None:
        if requests:
            server.rows = [(request, request.stay) for request in requests]
            server.began, server.left = self._clock.now, 1.0
            self.tally.step_began(server.index, len(requests))

    def _home_rows(self) -> list[Request]:
        max_ahead = self._setting.max_ahead
        return [request for request in self._requests if request.at_home or request.ahead < max_ahead]

    def _larger_rows(self, server: Server) -> list[Request]:
        waiting = server.waiting
        if not waiting:
            return []
        now = self._clock.now
        if len(waiting) < self._thresholds[server.index - 1]:
            if self._flush_s is None:
                return []
            # All that are added wait behind the others.
            flush_at = waiting[0].arrived + self._flush_s
            if flush_at > now + _SAME_S:
                if server.flush_at != flush_at:
                    server.flush_at = flush_at
                    self._later(flush_at - now, _nothing)
                return []
        server.waiting = []
        for request in waiting:
            if not request.visit_began:
                request.visit_began = True
                self.tally.waited(server.index, now - request.arrived)
        return waiting

    def _pace(self, server: Server, duration: float) -> None:
        """Let the rest of a step go on as a part of one that takes so long."""
        now = self._clock.now
        if server.timer is not None:
            if duration == server.duration:
                return
            server.left -= (now - server.since) / server.duration
        server.since, server.duration = now, duration
        server.timer = self._clock.timeout(max(server.left, 0.0) * duration)
        server.timer.callbacks.append(partial(self._step_ended, server))

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something after a delay, and what it makes possible; at once where there is none."""
        if not delay_s:
            action()
            return

        def act(_: simpy.Event) -> None:
            action()
            self._settle()

        self._clock.timeout(delay_s).callbacks.append(act)


def _nothing() -> None:
    """For a timer after which things only need to be looked at again."""

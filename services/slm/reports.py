"""What the home and the tiers behind it did of late, gathered for the model of the mesh's throughput.

Counting is plain integers; messages are made when clients are told of the load. A step is told only when it is old
enough for reports of other tiers' steps at the same time to have come.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..cuda.launch_counts import LaunchCounts
from ..mesh.regions import boot_id
from ..mesh.wire import model_pb2
from ..model.step_clock import StepClock
from ..policies.policy import HOME
from .overlap import Spans, overlap
from .request import Request
from .trip import StepMark, Trip

_MAX_STEPS = 1024
"""Steps of a tier that wait to be told; of more the newest."""
_SETTLED_NS, _MAX_SETTLED_NS = 250_000_000, 5_000_000_000
"""Age from which a step is told, or twice the time of the longest step of late, where that is more."""
_OLDEST_NS = 60_000_000_000
"""A step that began earlier before its report cannot have its time from this host's clock."""
_MAX_COUNT, _MAX_SUM = 2**32 - 1, 2**64 - 1
"""What a message has room for, whatever tiers say."""


@dataclass(slots=True)
class _Counts:
    """What a tier's report sums up."""

    num_visits: int = 0
    num_visit_steps: int = 0
    num_confirmed: int = 0
    decision_ns: int = 0
    away_ns: int = 0
    there_us: int = 0
    waited_us: int = 0
    num_full_launches: int = 0
    num_last_launches: int = 0
    num_flushed_launches: int = 0
    num_replayed_steps: int = 0
    num_direct_steps: int = 0


class _Past(NamedTuple):
    """A step that is over."""

    known_ns: int
    """Since when it is known here."""
    num_rows: int
    num_positions: int
    step_us: int
    span: tuple[int, int] | None
    """Start and end by this host's clock; None where that cannot be told."""


class Reports:
    """One report for each tier, the home's first. Belongs to the decode thread."""

    def __init__(self, num_tiers: int, steps: LaunchCounts, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`steps`: how the home's own are launched."""
        self._launched_steps = steps
        self._told_steps = steps.totals
        self.mark = StepMark()
        """Of the step in hand, or of the next."""
        self._num_tiers = num_tiers
        self._now_ns = now_ns
        self._boot_id = boot_id()
        self._spans = [Spans() for _ in range(num_tiers)]
        self._last_us = [0] * num_tiers
        self._thresholds = [0] * num_tiers
        self._sent: list[Trip] = []
        self.clear()

    def clear(self) -> None:
        """Forget what was counted and not told."""
        self._num_tokens = [0] * self._num_tiers
        self._num_rejected = 0
        self._num_scorings = [0, 0]
        """Batches that the router scored: directly, and by a graph."""
        self._counts = [_Counts() for _ in range(self._num_tiers)]
        self._steps: list[deque[_Past]] = [deque(maxlen=_MAX_STEPS) for _ in range(self._num_tiers)]

    def committed(self, tier: int) -> None:
        """A token of the tier became part of an answer."""
        self._num_tokens[tier] += 1

    def scored(self, *, is_replayed: bool) -> None:
        """The router scored a batch, by a CUDA graph or not."""
        self._num_scorings[is_replayed] += 1

    def rejected(self) -> None:
        """A proposal of the home was turned down."""
        self._num_rejected += 1

    def handed_off(self, request: Request) -> None:
        """The turn in hand sends the request to the tier that it visits."""
        request.trip = Trip(request.visited, request.turned_down)
        request.turned_down = None
        self._sent.append(request.trip)

    def returned(self, request: Request) -> None:
        """The request's visit is over."""
        trip, request.trip = request.trip, None
        if trip is not None and trip.sent_ns:
            counts = self._counts[trip.tier]
            counts.num_visits += 1
            counts.num_confirmed += bool(trip.is_confirmed)
            counts.decision_ns += trip.decision_ns
            counts.away_ns += max(0, self._now_ns() - trip.sent_ns)

    def stepped(self, clock: StepClock, num_rows: int, num_positions: int) -> None:
        """The turn whose end the clock has just taken ran a step."""
        self.mark.ended_ns = clock.ended_ns
        self.mark = StepMark()
        self._add(HOME, clock.ended_ns, num_rows, num_positions, clock.began_ns, clock.step_us)

    def sent(self, ended_ns: int) -> None:
        """What the turn handed off goes out now, at its end."""
        for trip in self._sent:
            trip.sent_ns = ended_ns
        self._sent.clear()

    def take_steps(self, tier: int, report: model_pb2.StepReport) -> None:
        """A larger tier tells of its steps. Times that cannot be of this host's clock are taken as lengths only."""
        now_ns = self._now_ns()
        is_near = bool(self._boot_id) and report.boot_id == self._boot_id
        for rows, positions, start, took_us in zip(
            report.num_rows, report.num_positions, report.started_ns, report.step_us, strict=False
        ):
            self._add(tier, now_ns, rows, positions, start if is_near else None, took_us)
        counts = self._counts[tier]
        counts.num_visit_steps += report.num_visit_steps
        counts.there_us += report.there_us
        counts.waited_us += report.waited_us
        counts.num_full_launches += report.num_full_launches
        counts.num_last_launches += report.num_last_launches
        counts.num_flushed_launches += report.num_flushed_launches
        counts.num_replayed_steps += report.num_replayed_steps
        counts.num_direct_steps += report.num_direct_steps
        self._thresholds[tier] = report.threshold

    def take(self, num_requests: int) -> list[model_pb2.TierReport]:
        """What came up since the last call, with the steps that are old enough. `num_requests`: open at the home."""
        steps, own = self._launched_steps.totals, self._counts[HOME]
        own.num_replayed_steps, own.num_direct_steps = (
            now - told for now, told in zip(steps, self._told_steps, strict=True)
        )
        self._told_steps = steps
        reports = [self._report(tier) for tier in range(self._num_tiers)]
        reports[HOME].num_requests = num_requests
        reports[HOME].num_rejected = self._num_rejected
        reports[HOME].num_direct_scorings, reports[HOME].num_replayed_scorings = self._num_scorings
        self._num_scorings = [0, 0]
        self._num_tokens = [0] * self._num_tiers
        self._num_rejected = 0
        self._counts = [_Counts() for _ in range(self._num_tiers)]
        return reports

    def _add(self, tier: int, known_ns: int, rows: int, positions: int, start: int | None, took_us: int) -> None:
        span = None
        if start is not None and known_ns - _OLDEST_NS < start <= known_ns - took_us * 1000:
            end = start + took_us * 1000
            span = (start, end) if self._spans[tier].add(start, end) else None
        self._last_us[tier] = took_us
        self._steps[tier].append(_Past(known_ns, rows, positions, took_us, span))

    def _report(self, tier: int) -> model_pb2.TierReport:
        settled_ns = min(max(_SETTLED_NS, 2000 * max(self._last_us)), _MAX_SETTLED_NS)
        before_ns, waiting = self._now_ns() - settled_ns, self._steps[tier]
        others = [spans for number, spans in enumerate(self._spans) if number != tier]
        steps: list[_Past] = []
        while waiting and waiting[0].known_ns <= before_ns:
            steps.append(waiting.popleft())
        counts = self._counts[tier]
        return model_pb2.TierReport(
            num_rows=[step.num_rows for step in steps],
            num_positions=[step.num_positions for step in steps],
            step_us=[step.step_us for step in steps],
            overlap=[0.0 if step.span is None else overlap(*step.span, others) for step in steps],
            num_tokens=self._num_tokens[tier],
            num_visits=counts.num_visits,
            num_visit_steps=min(counts.num_visit_steps, _MAX_COUNT),
            num_confirmed=counts.num_confirmed,
            decision_us=counts.decision_ns // 1000,
            away_us=counts.away_ns // 1000,
            there_us=min(counts.there_us, _MAX_SUM),
            waited_us=min(counts.waited_us, _MAX_SUM),
            num_full_launches=min(counts.num_full_launches, _MAX_COUNT),
            num_last_launches=min(counts.num_last_launches, _MAX_COUNT),
            num_flushed_launches=min(counts.num_flushed_launches, _MAX_COUNT),
            threshold=self._thresholds[tier],
            num_replayed_steps=min(counts.num_replayed_steps, _MAX_COUNT),
            num_direct_steps=min(counts.num_direct_steps, _MAX_COUNT),
        )

"""What a tier tells the homes of its steps, and of the visits that these ended."""

from collections import deque

from ..cuda.launch_counts import LaunchCounts
from ..engine.launch_gate import LaunchGate
from ..mesh.regions import boot_id
from ..mesh.wire import model_pb2
from ..model.step_clock import StepClock
from .visitor import Visitor

MAX_STEPS = 64
"""Steps of a message; of more the newest."""


class StepReports:
    """Gathers what happens until there is a message to tell it with. Belongs to the decode thread."""

    def __init__(self, clock: StepClock, gate: LaunchGate, steps: LaunchCounts) -> None:
        self._clock = clock
        self._gate = gate
        self._launched_steps = steps
        self._boot_id = boot_id()
        self._steps: deque[tuple[int, int, int, int]] = deque(maxlen=MAX_STEPS)
        """Rows, positions, start and microseconds of steps that nobody was told of."""
        self._over: list[Visitor] = []
        """Visitors whose visit this turn ended."""
        self._told_launches = self._launches()
        self._told_steps = steps.totals

    def took_part(self, visitor: Visitor) -> None:
        """A step was run for a visit."""
        if not visitor.num_steps:
            visitor.waited_ns = max(0, self._clock.began_ns - visitor.arrived_ns)
        visitor.num_steps += 1

    def visit_over(self, visitor: Visitor) -> None:
        """The turn in hand ends a visit."""
        self._over.append(visitor)

    def stepped(self, num_rows: int, num_positions: int) -> None:
        """The turn whose end the clock has just taken ran a step."""
        clock = self._clock
        self._steps.append((num_rows, num_positions, clock.began_ns, clock.step_us))

    def attach(self, responses: dict[int, model_pb2.VisitResponse]) -> None:
        """Tell every stream that is told something; of visits only the one whose they were."""
        rows, positions, started, took = zip(*self._steps, strict=True) if self._steps else ((), (), (), ())
        launches = self._launches()
        full, last, flushed = (now - told for now, told in zip(launches, self._told_launches, strict=True))
        steps = self._launched_steps.totals
        replayed, direct = (now - told for now, told in zip(steps, self._told_steps, strict=True))
        report = model_pb2.StepReport(
            num_rows=rows,
            num_positions=positions,
            started_ns=started,
            step_us=took,
            boot_id=self._boot_id,
            num_full_launches=full,
            num_last_launches=last,
            num_flushed_launches=flushed,
            threshold=self._gate.threshold,
            num_replayed_steps=replayed,
            num_direct_steps=direct,
        )
        for response in responses.values():
            response.steps.CopyFrom(report)
        for visitor in self._over:
            told = responses[visitor.key[0]].steps
            told.num_visits += 1
            told.num_visit_steps += visitor.num_steps
            told.there_us += max(0, self._clock.ended_ns - visitor.arrived_ns) // 1000
            told.waited_us += visitor.waited_ns // 1000
        self._told_launches, self._told_steps = launches, steps
        self._steps.clear()
        self._over.clear()

    def _launches(self) -> tuple[int, int, int]:
        return self._gate.num_full, self._gate.num_last, self._gate.num_flushed

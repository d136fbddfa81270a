"""How long a step took: from when it could have begun to the end of its turn.

Turns of a busy decode thread follow each other without a gap, so that the steps' times add up to the thread's. Where
it had nothing to do, or waited for company, a step could begin with the command that put an end to that.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_MAX_US = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What every command to a decode thread knows: when it came."""

    arrived_ns: int = field(default_factory=time.monotonic_ns, compare=False, repr=False)
    """Of the monotonic clock."""


class StepClock:
    """Takes the time of steps. Belongs to the decode thread; all times are nanoseconds of the monotonic clock."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._was_busy = False
        self.began_ns = now_ns()
        """When a step of the turn in hand could have begun."""
        self.ended_ns = self.began_ns
        """When the turn before ended."""

    @property
    def step_us(self) -> int:
        """Time of the step of the turn that has just ended, as far as 32 bits hold it."""
        return min(max(0, self.ended_ns - self.began_ns) // 1000, _MAX_US)

    def begin(self, commands: Sequence[Arrival]) -> None:
        """A turn begins, with the commands that came since the one before, in their order."""
        if self._was_busy:
            self.began_ns = self.ended_ns
        else:
            now_ns = self._now_ns()
            first_ns = commands[0].arrived_ns if commands else now_ns
            self.began_ns = min(max(first_ns, self.ended_ns), now_ns)

    def end(self, *, is_busy: bool) -> None:
        """The turn is over. `is_busy`: whether it ran a step, so that the next follows at once."""
        self._was_busy = is_busy
        self.ended_ns = self._now_ns()

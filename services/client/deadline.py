"""A point in time that everything done for one request shares: tries, pauses between them, and the gateway's work."""

import time
from dataclasses import dataclass
from typing import Self

from ..errors import DeadlineExceeded


@dataclass(frozen=True, slots=True)
class Deadline:
    """When the caller no longer wants an answer. Several calls may share one."""

    at_s: float
    """On the clock of `time.monotonic`."""

    @classmethod
    def after(cls, seconds: float) -> Self:
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        """Seconds that are left, 0 or less once it has passed."""
        return self.at_s - time.monotonic()

    def demand_s(self) -> float:
        """Seconds that are left.

        Raises:
            DeadlineExceeded: none are.
        """
        if (left_s := self.left_s) <= 0:
            raise DeadlineExceeded("the time for this call is over")
        return left_s


def deadline_of(timeout: Deadline | float | None, default_s: float) -> Deadline:
    """A caller's time limit, seconds from now or a deadline; None stands for the client's own."""
    if isinstance(timeout, Deadline):
        return timeout
    return Deadline.after(default_s if timeout is None else timeout)

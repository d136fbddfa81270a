"""How often a call is tried, and how long to wait before it is tried again."""

import random
from dataclasses import dataclass

from ..errors import AllroadsError, Code
from .deadline import Deadline


@dataclass(frozen=True, slots=True)
class Retry:
    """When a call that failed is made again. Only what the caller has seen nothing of is."""

    max_tries: int = 4
    """The first one included; 1 never tries again."""
    first_pause_s: float = 0.25
    """It doubles from try to try, and a pause is up to a quarter longer, so that callers part."""
    longest_pause_s: float = 10.0
    """Also of the pauses that the gateway asks for: a longer one is the caller's to wait."""


class Tries:
    """The tries of one call."""

    def __init__(self, retry: Retry, deadline: Deadline) -> None:
        self._retry, self._deadline = retry, deadline
        self._num_failed = 0
        self._has_begun = False

    def begin(self) -> None:
        """Something has come: from now on a failure is final, for the caller must not see it twice."""
        self._has_begun = True

    def time_left_s(self) -> float:
        """For the next try.

        Raises:
            DeadlineExceeded: none.
        """
        return self._deadline.demand_s()

    def pause_s(self, error: AllroadsError) -> float:
        """Seconds to wait after a failed try.

        Raises:
            AllroadsError: the error itself, where another try would not help, or there is none left or no time for it.
        """
        self._num_failed += 1
        retry = self._retry
        if self._has_begun or self._num_failed >= retry.max_tries or not _may_pass(error):
            raise error
        pause_s = min(retry.first_pause_s * 2.0 ** (self._num_failed - 1), retry.longest_pause_s)
        pause_s = max(pause_s, error.retry_after_s or 0.0)
        if pause_s > retry.longest_pause_s or pause_s >= self._deadline.left_s:
            raise error
        return pause_s * random.uniform(1.0, 1.25)


def _may_pass(error: AllroadsError) -> bool:
    """Whether the same request may be served later. A limit without a time to come back is one that stays."""
    if error.code is Code.RESOURCE_EXHAUSTED:
        return error.retry_after_s is not None
    return error.code is Code.UNAVAILABLE

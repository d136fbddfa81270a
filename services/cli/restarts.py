"""How often a service may die, and how long to wait before it starts again."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Pauses that double, and a number of deaths within a window that is one too many."""

    max_deaths: int = 5
    window_s: float = 60.0
    first_pause_s: float = 0.25
    longest_pause_s: float = 8.0


class Deaths:
    """The deaths of one service that still count."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque()

    def record(self, now_s: float) -> float | None:
        """Seconds to wait before the restart, None where the service is to be given up."""
        self._times.append(now_s)
        while self._times[0] <= now_s - self._policy.window_s:
            self._times.popleft()
        if len(self._times) >= self._policy.max_deaths:
            return None
        pause_s = self._policy.first_pause_s * float(2 ** (len(self._times) - 1))
        return min(pause_s, self._policy.longest_pause_s)

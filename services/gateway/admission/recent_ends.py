"""The rate at which requests ended lately: what there is to tell by when the model of throughput knows nothing."""

from collections import deque

_NUM_REMEMBERED = 64
_SHORTEST_S = 1e-3


class RecentEnds:
    """Times of the last ends, by a clock of the caller's."""

    def __init__(self) -> None:
        self._ended_s: deque[float] = deque(maxlen=_NUM_REMEMBERED)

    def add(self, now_s: float) -> None:
        """A request ended."""
        self._ended_s.append(now_s)

    def per_s(self, now_s: float) -> float | None:
        """Ends in a second; None before there were two."""
        if len(self._ended_s) < 2:
            return None
        return len(self._ended_s) / max(now_s - self._ended_s[0], _SHORTEST_S)

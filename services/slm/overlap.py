"""For how much of a step another tier of the same host was in a step, too."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

_MAX_SPANS = 4096
"""Steps of a tier that are remembered."""


class Spans:
    """Steps of one tier as spans of the host's monotonic clock, in nanoseconds: ascending, none within another."""

    def __init__(self) -> None:
        self._starts: deque[int] = deque(maxlen=_MAX_SPANS)
        self._ends: deque[int] = deque(maxlen=_MAX_SPANS)

    def add(self, start: int, end: int) -> bool:
        """Remember a step. Whether it can be: one that is empty, or began before the last one ended, is none."""
        if end <= start or (self._ends and start < self._ends[-1]):
            return False
        self._starts.append(start)
        self._ends.append(end)
        return True

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of steps that lie between two times, in order."""
        starts, ends = self._starts, self._ends
        index, parts = bisect_right(ends, start), []
        while index < len(ends) and (began := starts[index]) < end:
            parts.append((max(start, began), min(end, ends[index])))
            index += 1
        return parts


def overlap(start: int, end: int, others: Sequence[Spans]) -> float:
    """The part, from 0 to 1, of a span of time in which at least one of the other tiers was in a step."""
    parts = [part for spans in others for part in spans.within(start, end)]
    if len(others) > 1:
        parts.sort()
    covered, reached = 0, start
    for began, ended in parts:
        if ended > reached:
            covered += ended - max(began, reached)
            reached = ended
    return covered / (end - start)

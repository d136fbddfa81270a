"""When the small model launches a step: not for a few requests while most of them are about to be ready.

Requests that wait for verdicts come free together, a moment later. A step for the others alone would cost
nearly as much as one for all, and would split the batch in two halves that take turns from then on.
"""

import time

from ..engine.sequence import State
from .request import Place
from .table import RequestTable

LONGEST_HOLD_S = 0.005
"""A step is held for so long at most, counted from when it could first have been launched."""


class Launch:
    """Decides whether a step waits for company. Belongs to the decode thread."""

    def __init__(self, *, max_unjudged: int) -> None:
        self._max_unjudged = max_unjudged
        self._held_since_s: float | None = None

    def wait_s(self, table: RequestTable) -> float:
        """For how long to wait for verdicts before a step; 0 to launch now."""
        ready = blocked = 0
        for request in table.all():
            if request.sequence.state is State.RUNNING and request.sequence.num_uncomputed:
                ready += 1
            elif request.place is Place.HOME and len(request.suffix) - request.num_held > self._max_unjudged:
                blocked += 1
        if not 0 < ready < blocked:
            self._held_since_s = None
            return 0.0
        now_s = time.monotonic()
        if self._held_since_s is None:
            self._held_since_s = now_s
        left_s = self._held_since_s + LONGEST_HOLD_S - now_s
        if left_s <= 0:
            self._held_since_s = None
        return max(0.0, left_s)

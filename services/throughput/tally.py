"""What an event simulation counts, and the figures that come of it."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .setting import Prediction

PERCENTILES = (50.0, 95.0, 99.0)
_NUM_WINDOWS = 20
_MAX_GAPS = 1_000_000
"""Gaps that are kept, the first ones; a run is alike from its start to its end."""
_STUDENT_T = 2.093
"""97.5 % quantile of Student's t with `_NUM_WINDOWS` - 1 degrees of freedom."""


@dataclass(frozen=True)
class Simulated(Prediction):
    """What was counted in a simulation, after its warm-up."""

    half_width: float
    """Of the 95 % interval around `tokens_per_s`, by means over windows of equal time."""
    gaps_s: tuple[float, ...]
    """`PERCENTILES` of the time between two tokens of an answer. Each step at home but the last of a stay is taken
    for a token, and each step of a visit; what was made ahead and stays comes at once when the visit is back."""
    hand_off_waits_s: tuple[float, ...]
    """`PERCENTILES` of the time from a visit's arrival until its first step begins, over all larger tiers."""
    simulated_s: float
    """Time that was looked at, without the warm-up."""


class Tally:
    """Counts of a run from one moment on."""

    def __init__(self, num_servers: int, now: float = 0.0) -> None:
        """Count from `now` on; the first server is the home."""
        self.began = now
        self.busy_s = [0.0] * num_servers
        self._steps = [0] * num_servers
        self._rows = [0] * num_servers
        self._waits = [array("d") for _ in range(num_servers)]
        self._gaps = array("d")
        self._times = array("d", [now])
        self._cycles = array("q", [0])

    @property
    def num_cycles(self) -> int:
        """Visits that came back."""
        return self._cycles[-1]

    def step_began(self, server: int, num_rows: int) -> None:
        """A server takes so many rows."""
        self._steps[server] += 1
        self._rows[server] += num_rows

    def step_ended(self, server: int, began: float, now: float) -> None:
        """A server's step ends, or the count does."""
        self.busy_s[server] += now - max(began, self.began)

    def waited(self, server: int, seconds: float) -> None:
        """A visit's first step begins after so long."""
        self._waits[server].append(seconds)

    def gap(self, seconds: float) -> None:
        """Between two tokens of an answer."""
        if len(self._gaps) < _MAX_GAPS:
            self._gaps.append(seconds)

    def came_back(self, num_visits: int, now: float) -> None:
        """Visits end."""
        self._times.append(now)
        self._cycles.append(self._cycles[-1] + num_visits)

    def figures(self, num_requests: int, thresholds: Sequence[int], tokens_per_cycle: float) -> Simulated:
        """All of it, up to the last visit that came back."""
        seconds = self._times[-1] - self.began
        edges = np.linspace(self.began, self._times[-1], _NUM_WINDOWS + 1)
        index = np.searchsorted(np.asarray(self._times), edges, side="right") - 1
        counts = np.diff(np.asarray(self._cycles)[index])
        rates = counts * (tokens_per_cycle * _NUM_WINDOWS / seconds)
        visits = range(1, len(self.busy_s))
        return Simulated(
            num_requests=num_requests,
            thresholds=tuple(thresholds),
            tokens_per_s=tokens_per_cycle * self.num_cycles / seconds,
            batches=tuple(self._rows[server] / max(self._steps[server], 1) for server in visits),
            waits_s=tuple(float(np.mean(self._waits[server])) if self._waits[server] else 0.0 for server in visits),
            busy=tuple(busy_s / seconds for busy_s in self.busy_s),
            half_width=_STUDENT_T * float(rates.std(ddof=1)) / _NUM_WINDOWS**0.5,
            gaps_s=_percentiles(np.asarray(self._gaps)),
            hand_off_waits_s=_percentiles(np.concatenate([np.asarray(waits) for waits in self._waits])),
            simulated_s=seconds,
        )


def _percentiles(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, ...]:
    if not len(values):
        return (0.0,) * len(PERCENTILES)
    return tuple(np.percentile(values, PERCENTILES).tolist())

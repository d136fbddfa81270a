"""Launch thresholds in force: which were wished, and when they change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...mesh.wire import model_pb2
from ...throughput.setting import Prediction

_WAITS = 4.0
"""Predicted mean waits after which a hand-off is launched all the same."""
_LEAST_HOLD_S = 0.002
_MUCH_LONGER = 1.5


@dataclass(frozen=True)
class Launch:
    """When a larger tier runs a batch."""

    threshold: int
    """Visits that wait before it does, if so many can come."""
    flush_s: float
    """After which the oldest waits no longer."""


class Launches:
    """Of all larger tiers. Every change is told once, by `tell`."""

    def __init__(self, tell: Callable[[Sequence[model_pb2.LaunchThreshold]], None], max_hold_s: float) -> None:
        self._tell = tell
        self._max_hold_s = max_hold_s
        self._chosen: list[Launch] = []
        self._in_force: list[Launch] = []
        self.wished: tuple[int, ...] | None = None
        """The model's best; None while there is no answer."""

    @property
    def in_force(self) -> tuple[int, ...]:
        """Thresholds, one for each larger tier."""
        return tuple(launch.threshold for launch in self._in_force)

    @property
    def flush_s(self) -> tuple[float, ...]:
        """Flush time-outs, parallel to `in_force`."""
        return tuple(launch.flush_s for launch in self._in_force)

    def reset(self, num_larger: int) -> None:
        """A mesh with so many larger tiers is there: all launch at once."""
        self.wished = None
        self._chosen = [Launch(1, self._max_hold_s)] * num_larger
        self._apply(self._chosen)

    def fall_back(self) -> None:
        """All launch at once from now on."""
        self.reset(len(self._chosen))

    def consider(self, best: Prediction, current: Prediction, min_gain: float) -> None:
        """Take over the best thresholds where they promise so much more than those in force, as a part of it."""
        self.wished = best.thresholds
        gain = best.tokens_per_s / current.tokens_per_s - 1.0
        is_better = gain > 0.0 and gain >= min_gain
        holds_s = [self._hold_s(wait_s) for wait_s in (best if is_better else current).waits_s]
        thresholds = best.thresholds if is_better else tuple(launch.threshold for launch in self._chosen)
        chosen = [Launch(*launch) for launch in zip(thresholds, holds_s, strict=True)]
        if any(_is_worth_telling(old, new) for old, new in zip(self._chosen, chosen, strict=True)):
            self._chosen = chosen

    def limit(self, num_requests: int) -> None:
        """No tier waits for more visits than there are requests, nor all of them for each other's.

        When more come again, what was chosen is in force again.
        """
        limited = limited_thresholds([launch.threshold for launch in self._chosen], num_requests)
        self._apply([Launch(most, chosen.flush_s) for most, chosen in zip(limited, self._chosen, strict=True)])

    def _hold_s(self, wait_s: float) -> float:
        return min(max(_WAITS * wait_s, _LEAST_HOLD_S), self._max_hold_s)

    def _apply(self, launches: list[Launch]) -> None:
        if launches == self._in_force:
            return
        self._in_force = launches
        self._tell(
            [
                model_pb2.LaunchThreshold(
                    tier=tier, num_visits=launch.threshold, flush_timeout_us=max(int(launch.flush_s * 1e6), 1)
                )
                for tier, launch in enumerate(launches, 1)
            ]
        )


def limited_thresholds(thresholds: Sequence[int], num_requests: int) -> tuple[int, ...]:
    """The same where so many requests can reach them, else lower ones: the largest give way first."""
    limited = [min(threshold, max(num_requests, 1)) for threshold in thresholds]
    while len(limited) > 1 and sum(limited) - len(limited) >= max(num_requests, 1):
        limited[limited.index(max(limited))] -= 1
    return tuple(limited)


def _is_worth_telling(old: Launch, new: Launch) -> bool:
    if new.threshold != old.threshold:
        return True
    ratio = new.flush_s / old.flush_s
    return new.threshold > 1 and not 1.0 / _MUCH_LONGER < ratio < _MUCH_LONGER

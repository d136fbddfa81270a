"""How many requests each API key may start in a minute."""

import time
from collections import OrderedDict

from asyncio_throttle.throttler import Throttler

from .refusal import Refusal

_PERIOD_S = 60.0
_MAX_KEYS = 4096
_SHORTEST_RETRY_S = 1.0


class _Window(Throttler):
    """The starts of one key within the period, asked at once instead of waited for.

    The library's `acquire` looks again and again until there is room; whoever is refused must not be waited for.
    """

    @property
    def num_started(self) -> int:
        """Starts that count now."""
        self.flush()  # type: ignore[no-untyped-call]
        return len(self._task_logs)

    def room_in_s(self) -> float:
        """When one more may start; 0 for now."""
        if self.num_started < self.rate_limit:
            return 0.0
        oldest_s: float = self._task_logs[0]
        return max(oldest_s + _PERIOD_S - time.monotonic(), _SHORTEST_RETRY_S)

    def take(self) -> None:
        """One started."""
        self._task_logs.append(time.monotonic())


class KeyRates:
    """Sliding windows by key. Requests without a key count as those of one.

    Keys that started nothing for a period are forgotten. Beyond so many keys the one that was quiet longest is,
    too, and may start afresh. What is kept is one number for each request that started within the period.
    """

    def __init__(self, requests_per_minute: int | None, *, max_keys: int = _MAX_KEYS) -> None:
        self._rate = requests_per_minute
        self._max_keys = max_keys
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def check(self, key: str) -> None:
        """Whether a key may start one more request now.

        Raises:
            Refusal: not before the time that it carries.
        """
        window = self._windows.get(key)
        if window is not None and (room_in_s := window.room_in_s()):
            message = f"this key may start {self._rate} requests in a minute, and has"
            raise Refusal("key_rate", message, retry_after_s=room_in_s)

    def take(self, key: str) -> None:
        """A request of a key starts."""
        if self._rate is None:
            return
        if key not in self._windows:
            self._windows[key] = _Window(self._rate, _PERIOD_S)
        self._windows[key].take()
        self._windows.move_to_end(key)
        while len(self._windows) > self._max_keys or not next(iter(self._windows.values())).num_started:
            self._windows.popitem(last=False)

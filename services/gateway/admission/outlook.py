"""What the model of throughput says to those who admit: how many may run, and how soon the next one could begin."""

from collections.abc import Mapping

from ...throughput.setting import Setting

OUTLOOK_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of requests for which throughput is predicted; between them it is taken to be straight."""


class PredictedService:
    """Throughput by the number of requests. Knows nothing until it was told, and says None then.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._tokens_per_s: dict[int, float] = {}
        self._num_requests = 0
        self._tokens_per_request = float("inf")
        self._request_s = 0.0

    def learn(self, tokens_per_s: Mapping[int, float], num_requests: int, setting: Setting) -> None:
        """Take over predictions.

        Args:
            tokens_per_s: of all requests together, by their number; positive. None at all is to know nothing.
            num_requests: that are there now.
            setting: what was predicted from.
        """
        self._tokens_per_s = dict(sorted(tokens_per_s.items()))
        self._num_requests = num_requests
        self._tokens_per_request = setting.tokens_per_request
        self._request_s = setting.request_s

    def forget(self) -> None:
        """Know nothing: the model failed, or is not fitted to what is there now."""
        self._tokens_per_s = {}

    def tokens_per_s(self, num_requests: int) -> float | None:
        """Of all requests together, when there are so many; beyond the largest number known it grows no more."""
        below: tuple[int, float] | None = None
        for size, value in self._tokens_per_s.items():
            if size >= num_requests:
                if below is None or size == num_requests:
                    return value * min(num_requests / size, 1.0)
                part = (num_requests - below[0]) / (size - below[0])
                return below[1] + part * (value - below[1])
            below = size, value
        return None if below is None else below[1]

    def capacity(self, min_tokens_per_s: float) -> int | None:
        """Largest number of requests of which each gets so many tokens a second: 0 where not even one does.

        None where it is unknown, or not bounded by what is known.
        """
        below: tuple[int, float] | None = None
        for size, value in self._tokens_per_s.items():
            if value < size * min_tokens_per_s:
                if below is None:
                    return int(value / min_tokens_per_s) if size > 1 else 0
                slope = (value - below[1]) / (size - below[0])
                return int((below[1] - slope * below[0]) / (min_tokens_per_s - slope) + 1e-9)
            below = size, value
        return None

    def first_token_s(self, num_waiting: int, num_running: int) -> float | None:
        """From now to the first token of a request.

        Args:
            num_waiting: requests that must end before it may start: 0 where a place is free, else its place in line,
                of which the first is 1.
            num_running: requests in the mesh meanwhile.
        """
        if num_waiting == 0:
            tokens_per_s = self.tokens_per_s(max(num_running, 1))
            return None if tokens_per_s is None else self._request_s + max(num_running, 1) / tokens_per_s
        if not (ends_per_s := self._ends_per_s(num_running)):
            return None
        return num_waiting / ends_per_s + self._request_s + num_running / (ends_per_s * self._tokens_per_request)

    def ends_per_s(self) -> float | None:
        """Requests that end in a second, as many as there are now. None where the length of answers is unknown."""
        return self._ends_per_s(self._num_requests)

    def _ends_per_s(self, num_requests: int) -> float | None:
        tokens_per_s = self.tokens_per_s(max(num_requests, 1))
        if tokens_per_s is None or self._tokens_per_request == float("inf"):
            return None
        return tokens_per_s / self._tokens_per_request

"""Tokens a second of late, counted only while requests are open."""

_HALF_LIFE_S = 3.0
_LEAST_S = 0.5


class MeasuredRate:
    """A sum of tokens over a sum of time, both of which forget."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        """So many tokens came in that time."""
        keep = 0.5 ** (max(seconds, 0.0) / _HALF_LIFE_S)
        self._tokens = keep * self._tokens + num_tokens
        self._seconds = keep * self._seconds + max(seconds, 0.0)

    @property
    def per_s(self) -> float | None:
        """None until there was time enough to tell."""
        return self._tokens / self._seconds if self._seconds >= _LEAST_S else None

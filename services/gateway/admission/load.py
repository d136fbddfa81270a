"""How many requests share the mesh, of which this gateway's are a part."""

_FRESH_S = 2.0


class OpenRequests:
    """Own requests are known at once, those of other gateways by what the home reported last."""

    def __init__(self) -> None:
        self.own = 0
        """This gateway's, at the home."""
        self._others = 0
        self._reported_s = float("-inf")

    def report(self, num_requests: int, now_s: float) -> None:
        """The home told how many are open there."""
        self._others = max(num_requests - self.own, 0)
        self._reported_s = now_s

    def count(self, now_s: float) -> int:
        """All that are open; others' only as long as the home is heard of."""
        return self.own + (self._others if now_s - self._reported_s <= _FRESH_S else 0)

"""How often the router lets a token pass that the large model would not have written, estimated live.

At a hand-off the large model reads what the small one wrote alone, and so has an opinion on it for free.
The estimate is the share of these tokens on which it differs. It is an upper one, since a token that differs
may say the same; and it is of tokens before some hand-off: those after an answer's last one are never seen.
"""

from collections import deque
from dataclasses import dataclass

from ..mesh.wire import common_pb2
from .wilson import wilson_interval

_NUM_RECENT_REQUESTS = 256


@dataclass(frozen=True, slots=True)
class MissedRate:
    """A share and the bounds of its 95 % interval, which takes tokens to be independent of each other."""

    estimate: float
    low: float
    high: float


class MissedDivergence:
    """Opinions on the tokens of recent requests."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int]] = deque(maxlen=_NUM_RECENT_REQUESTS)

    def add(self, usage: common_pb2.Usage) -> None:
        """A request ended, with this account."""
        self._recent.append((usage.num_opinions - usage.num_agreed_opinions, usage.num_opinions))

    def rate(self) -> MissedRate:
        """The estimate now; (0, 0, 1) where nothing was seen."""
        num_missed = sum(missed for missed, _ in self._recent)
        num_seen = sum(seen for _, seen in self._recent)
        return MissedRate(num_missed / num_seen if num_seen else 0.0, *wilson_interval(num_missed, num_seen))

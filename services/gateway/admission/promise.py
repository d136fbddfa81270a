"""What the operator promises to each request, and what the model of throughput makes of it.

Where the model knows nothing, nothing follows from a promise: `gateway.max_running` alone rules.
"""

import math
from dataclasses import dataclass, field

from .outlook import PredictedService


@dataclass(frozen=True, slots=True)
class Promise:
    """Tokens a second and time to the first token, by what is known of the mesh now."""

    outlook: PredictedService = field(default_factory=PredictedService)
    min_tokens_per_s: float | None = None
    max_first_token_s: float | None = None

    def limit(self, max_running: int) -> int:
        """How many may run at once: `max_running`, or fewer that can be served as promised, at least 1."""
        if self.min_tokens_per_s is None:
            return max_running
        capacity = self.outlook.capacity(self.min_tokens_per_s)
        return max_running if capacity is None else max(1, min(capacity, max_running))

    def first_token_s(self, place: int, num_running: int) -> float | None:
        """From now to the first token of a request at this place in line, 0 for a free place; None if unknown."""
        return _sane(self.outlook.first_token_s(place, num_running))

    def ends_per_s(self) -> float | None:
        """Requests that end in a second; None if unknown."""
        return _sane(self.outlook.ends_per_s())


def _sane(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value > 0 else None

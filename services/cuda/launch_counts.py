"""How often work was launched as a recording, and how often not."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class LaunchCounts:
    """How often something ran, for metrics. Only grows."""

    num_replayed: int = 0
    """As a recording."""
    num_eager: Counter[str] = field(default_factory=Counter)
    """Operation by operation, by the reason why."""

    @property
    def totals(self) -> tuple[int, int]:
        """As a recording, and for whatever reason not."""
        return self.num_replayed, self.num_eager.total()

"""What those who call a tier want its launches to be like, and what follows for all of them together."""

from dataclasses import dataclass

from ..mesh.wire import model_pb2

MAX_FLUSH_S = 10.0
"""Nobody waits longer for company, whatever is wished."""


@dataclass(frozen=True, slots=True)
class LaunchRule:
    """When a tier launches a batch."""

    num_visits: int = 1
    """So many must wait; 1 launches at once."""
    flush_s: float = 0.0
    """But none of them longer than this, at most `MAX_FLUSH_S`."""

    @classmethod
    def from_wire(cls, wire: model_pb2.LaunchThreshold) -> "LaunchRule":
        """A wish as it came; what is beyond the limits is brought within."""
        return cls(max(1, wire.num_visits), min(wire.flush_timeout_us / 1e6, MAX_FLUSH_S))

    def to_wire(self, tier: int) -> model_pb2.LaunchThreshold:
        """The same for a tier to read."""
        return model_pb2.LaunchThreshold(
            tier=tier, num_visits=self.num_visits, flush_timeout_us=round(self.flush_s * 1e6)
        )


class LaunchWishes:
    """The wishes of all streams for one tier. One that ends takes its wish with it."""

    def __init__(self) -> None:
        self._by_stream: dict[int, LaunchRule] = {}

    def wish(self, stream_id: int, rule: LaunchRule) -> None:
        """A stream's wish, in place of what it wished before."""
        self._by_stream[stream_id] = rule

    def forget(self, stream_id: int) -> None:
        """The stream is over. Harmless when it had no wish."""
        self._by_stream.pop(stream_id, None)

    @property
    def in_force(self) -> LaunchRule:
        """The fewest visits and the shortest wait that any stream wants who wants one; at once where none does.

        A wish for 1 is that of a caller who has nothing to say: one gateway without requests does not undo what
        another one knows.
        """
        rules = [rule for rule in self._by_stream.values() if rule.num_visits > 1]
        if not rules:
            return LaunchRule()
        return LaunchRule(min(rule.num_visits for rule in rules), min(rule.flush_s for rule in rules))

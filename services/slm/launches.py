"""How clients want larger tiers to launch, and what of it each tier has been told."""

from collections.abc import Iterable

from ..mesh.wire import model_pb2
from ..model.launch_wishes import LaunchRule, LaunchWishes


class Launches:
    """Wishes by tier and client stream. Belongs to the decode thread."""

    def __init__(self, num_tiers: int) -> None:
        self._wishes = {tier: LaunchWishes() for tier in range(1, num_tiers)}
        self._told: dict[int, LaunchRule] = {}
        """What each tier within reach goes by."""

    def wish(self, stream_id: int, launches: Iterable[model_pb2.LaunchThreshold]) -> None:
        """A client's wishes. Those for tiers that there are not are left aside."""
        for wire in launches:
            if (wishes := self._wishes.get(wire.tier)) is not None:
                wishes.wish(stream_id, LaunchRule.from_wire(wire))

    def forget(self, stream_id: int) -> None:
        """A client's stream is over."""
        for wishes in self._wishes.values():
            wishes.forget(stream_id)

    def tier_up(self, tier: int) -> None:
        """A tier is within reach, and knows of no wish of ours yet."""
        self._told[tier] = LaunchRule()

    def tier_down(self, tier: int) -> None:
        """A tier is out of reach."""
        self._told.pop(tier, None)

    def news(self) -> list[model_pb2.LaunchThreshold]:
        """What is in force now and was not told to tiers within reach; from here on it was."""
        news = []
        for tier, told in self._told.items():
            rule = self._wishes[tier].in_force
            if rule != told:
                self._told[tier] = rule
                news.append(rule.to_wire(tier))
        return news

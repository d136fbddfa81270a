"""Launch thresholds that several streams wish."""

import pytest
from allroads.mesh.wire import model_pb2
from allroads.model.launch_wishes import LaunchRule, LaunchWishes


def test_the_fewest_and_the_shortest_are_in_force() -> None:
    wishes = LaunchWishes()
    assert wishes.in_force == LaunchRule(1, 0.0)
    wishes.wish(1, LaunchRule(8, 0.02))
    wishes.wish(2, LaunchRule(4, 0.05))
    assert wishes.in_force == LaunchRule(4, 0.02)
    wishes.wish(2, LaunchRule(9, 0.01))
    assert wishes.in_force == LaunchRule(8, 0.01)
    wishes.forget(1)
    wishes.forget(3)
    assert wishes.in_force == LaunchRule(9, 0.01)


def test_a_caller_with_nothing_to_say_does_not_undo_what_others_know() -> None:
    wishes = LaunchWishes()
    wishes.wish(1, LaunchRule(1, 0.001))
    assert wishes.in_force == LaunchRule(1, 0.0)
    wishes.wish(2, LaunchRule(6, 0.02))
    assert wishes.in_force == LaunchRule(6, 0.02)


@pytest.mark.parametrize(
    ("num_visits", "flush_us", "rule"),
    [(0, 5, LaunchRule(1, 5e-6)), (7, 2**32 - 1, LaunchRule(7, 10.0)), (2, 0, LaunchRule(2, 0.0))],
)
def test_what_came_is_brought_within_limits(num_visits: int, flush_us: int, rule: LaunchRule) -> None:
    wire = model_pb2.LaunchThreshold(tier=1, num_visits=num_visits, flush_timeout_us=flush_us)
    assert LaunchRule.from_wire(wire) == rule
    assert LaunchRule.from_wire(rule.to_wire(2)) == rule
    assert rule.to_wire(2).tier == 2

"""Which tier is told of which launch threshold, and when."""

from allroads.mesh.wire import model_pb2
from allroads.slm.launches import Launches


def _wish(tier: int, num_visits: int, flush_us: int = 50_000) -> model_pb2.LaunchThreshold:
    return model_pb2.LaunchThreshold(tier=tier, num_visits=num_visits, flush_timeout_us=flush_us)


def test_a_tier_is_told_what_changes() -> None:
    launches = Launches(num_tiers=3)
    launches.tier_up(1)
    launches.tier_up(2)
    assert not launches.news(), "it launches at once until it is told"
    launches.wish(1, [_wish(1, 4), _wish(2, 6)])
    assert launches.news() == [_wish(1, 4), _wish(2, 6)]
    assert not launches.news()
    launches.wish(1, [_wish(2, 5)])
    assert launches.news() == [_wish(2, 5)]
    launches.wish(2, [_wish(1, 3, 90_000)])
    assert launches.news() == [_wish(1, 3)]
    launches.forget(2)
    assert launches.news() == [_wish(1, 4)]
    launches.forget(1)
    assert launches.news() == [_wish(1, 1, 0), _wish(2, 1, 0)]


def test_a_tier_that_comes_back_is_told_again_and_one_that_is_gone_is_not() -> None:
    launches = Launches(num_tiers=2)
    launches.wish(1, [_wish(1, 4)])
    assert not launches.news()
    launches.tier_up(1)
    assert launches.news() == [_wish(1, 4)]
    launches.tier_down(1)
    launches.wish(1, [_wish(1, 7)])
    assert not launches.news()
    launches.tier_up(1)
    assert launches.news() == [_wish(1, 7)]


def test_tiers_that_there_are_not_are_left_aside() -> None:
    launches = Launches(num_tiers=2)
    launches.tier_up(1)
    launches.wish(1, [_wish(0, 4), _wish(2, 4), _wish(99, 4)])
    assert not launches.news()

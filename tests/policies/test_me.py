"""ME: who writes a token is drawn by weight, from seed and position alone."""

from collections import Counter

import pytest
from allroads.errors import InvalidArgument
from allroads.policies.me import ModelEnsemble

from .views import view

POLICY = ModelEnsemble()


def _schedule(seed: int, weights: list[float], count: int) -> list[int | None]:
    given = {"weights": weights}
    return [
        POLICY.ahead(view(POLICY, num_tiers=len(weights), given=given, seed=seed, position=n)) for n in range(count)
    ]


def test_the_shares_are_the_weights() -> None:
    weights = [0.5, 0.3, 0.2]
    counts = Counter(tier for seed in range(40) for tier in _schedule(seed, weights, 250))
    assert sum((counts[tier] - 10_000 * own) ** 2 / (10_000 * own) for tier, own in enumerate(weights)) < 13.8


def test_a_draw_depends_on_seed_and_position_only() -> None:
    schedule = _schedule(7, [1, 1, 1], 50)
    assert schedule == _schedule(7, [1, 1, 1], 50) != _schedule(8, [1, 1, 1], 50)
    for position, tier in enumerate(schedule):
        other = view(
            POLICY, num_tiers=3, given={"weights": [20, 20, 20]}, seed=7, position=position,
            max_tokens=999, is_greedy=False, memory={"x": 1},
        )  # fmt: skip
        assert POLICY.ahead(other) == tier


def test_one_weight_moves_the_borders_and_not_the_numbers() -> None:
    """A tier of more weight keeps the positions that it had."""
    less, more = _schedule(3, [0.5, 0.5], 400), _schedule(3, [0.7, 0.3], 400)
    assert all(more[n] == 0 for n in range(400) if less[n] == 0)
    assert more.count(0) > less.count(0)


def test_a_visit_is_a_run_of_the_schedule() -> None:
    schedule = _schedule(11, [1, 2, 3], 60)
    for position, tier in enumerate(schedule):
        request = view(POLICY, num_tiers=3, given={"weights": [1, 2, 3]}, seed=11, position=position, max_tokens=60)
        assert tier is not None
        run = next((n for n in range(position, 60) if schedule[n] != tier), 60) - position
        assert POLICY.send(request, tier).max_tokens == run


def test_tiers_without_weight_neither_write_nor_reserve() -> None:
    request = view(POLICY, num_tiers=4, given={"weights": [0, 3, 0, 1]})
    assert POLICY.reach(request) == {1, 3}
    assert set(_schedule(5, [0, 3, 0, 1], 300)) == {1, 3}
    assert set(_schedule(5, [0, 0, 2], 100)) == {2}


def test_some_weight_is_needed() -> None:
    POLICY.check(view(POLICY, num_tiers=2, given={"weights": [0, 1e-9]}))
    with pytest.raises(InvalidArgument, match="above 0") as caught:
        POLICY.check(view(POLICY, num_tiers=2, given={"weights": [0, 0]}))
    assert caught.value.field == "routing.weights"

"""The scalable chain against the published one and against the simulation.

Bounds are for fixed seeds: the simulation's own error is about 1 % at these lengths.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from allroads.throughput.chain import Chain, predict
from allroads.throughput.phases import Phases
from allroads.throughput.published import published_throughput
from allroads.throughput.setting import Setting, StepCurve, Tier
from allroads.throughput.simulate import simulate

affine = StepCurve.affine


def constant(share: float, home_s: float = 0.006, large_s: float = 0.0279, **fields: float) -> Setting:
    """Step times that know neither of rows nor of each other, as in the published model."""
    home, large = affine(home_s), affine(large_s)
    return Setting.routed(share, (home, home), (large, large), **fields)


def contended(share: float, **fields: float) -> Setting:
    """Step times that grow with the rows and beside each other; those of `facts` on the chain."""
    home, large = affine(0.003, 0.00005), affine(0.022, 0.0003)
    return Setting.routed(share, (home, home.scaled(1.8)), (large, large.scaled(1.3)), **fields)


def near(share: float, **fields: float) -> Setting:
    """Two models of nearly one size."""
    home, large = affine(0.0015, 0.00002), affine(0.004, 0.0002)
    return Setting.routed(share, (home, home.scaled(1.3)), (large, large.scaled(1.5)), **fields)


def error(setting: Setting, num_requests: int, *thresholds: int, num_cycles: int = 3000) -> float:
    simulated = simulate(setting, num_requests, thresholds, num_cycles=num_cycles, seed=1)
    return predict(setting, num_requests, thresholds).tokens_per_s / simulated.tokens_per_s - 1.0


@pytest.mark.parametrize(
    ("num_requests", "threshold"), [(2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3), (4, 4)]
)
def test_agrees_with_the_published_chain_where_both_apply(num_requests: int, threshold: int) -> None:
    published = published_throughput(
        [[0.65, 0.35], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]], [0.006, 0.0279], [1, threshold], num_requests
    )
    mine = predict(constant(0.35), num_requests, [threshold]).tokens_per_s
    # The published chain knows where the home is in its step; this one knows it to a quarter of a step.
    assert mine == pytest.approx(published, rel=0.025)


def test_one_request_alone_is_a_sum() -> None:
    for share in (0.02, 0.2, 0.5):
        for fields in ({}, {"hand_off_s": 0.003}):
            setting = constant(share, **fields)
            cycle_s = 0.006 / share + 0.0279 + setting.hand_off_s
            assert predict(setting, 1, [1]).tokens_per_s == pytest.approx(1 / share / cycle_s, rel=1e-3)


@pytest.mark.parametrize("make", [constant, contended, near])
@pytest.mark.parametrize(("share", "visit_ends"), [(0.05, 1.0), (0.1, 0.5), (0.35, 1.0), (0.5, 0.7)])
def test_agrees_with_the_simulation(make: Callable[..., Setting], share: float, visit_ends: float) -> None:
    setting = make(share, visit_ends=visit_ends)
    for num_requests, threshold in ((2, 2), (8, 1), (8, 3), (32, 1), (32, 12)):
        assert abs(error(setting, num_requests, threshold)) < 0.05, (num_requests, threshold)


@pytest.mark.parametrize("make", [constant, contended, near])
def test_agrees_with_the_simulation_at_hundreds_of_requests(make: Callable[..., Setting]) -> None:
    for share, threshold in ((0.05, 1), (0.05, 80), (0.3, 1), (0.3, 120)):
        assert abs(error(make(share), 256, threshold, num_cycles=30_000)) < 0.05, (share, threshold)


@pytest.mark.parametrize(
    "fields",
    [
        {"hand_off_s": 0.004},
        {"request_s": 0.2, "tokens_per_request": 80.0},
        {"max_ahead": 8, "confirmed": 0.7},
        {"max_ahead": 8, "confirmed": 0.7, "hand_off_s": 0.002, "request_s": 0.05, "tokens_per_request": 120.0},
    ],
    ids=["hand-off", "answers", "ahead", "all"],
)
def test_delays_and_what_the_home_makes_ahead(fields: dict[str, float]) -> None:
    for num_requests, threshold in ((1, 1), (4, 1), (16, 1), (16, 6)):
        assert abs(error(contended(0.08, **fields), num_requests, threshold)) < 0.06, (num_requests, threshold)


def test_stays_that_are_no_coins() -> None:
    home, large = affine(0.004, 0.0001), affine(0.02, 0.001)
    budget = Tier("slm", home, home.scaled(1.2), Phases.fixed(6))
    visits = Tier("llm", large, large.scaled(1.2), Phases.geometric(1.0))
    setting = Setting(budget, (visits,), tokens_per_cycle=5.0)
    for num_requests, threshold in ((1, 1), (2, 2), (12, 6), (12, 12)):
        assert abs(error(setting, num_requests, threshold)) < 0.05, (num_requests, threshold)
    # A budget is not a coin of the same mean: all that start together come together.
    coin = replace(setting, home=replace(budget, stay=Phases.geometric(1 / 6)))
    assert predict(setting, 2, [2]).tokens_per_s > 1.1 * predict(coin, 2, [2]).tokens_per_s


def test_several_larger_tiers() -> None:
    home, middle, large = affine(0.003, 0.0001), affine(0.008, 0.0004), affine(0.02, 0.0008)
    setting = Setting(
        Tier("slm", home, home.scaled(1.2), Phases.geometric(0.15)),
        (
            Tier("mlm", middle, middle.scaled(1.2), Phases.geometric(1.0)),
            Tier("llm", large, large.scaled(1.2), Phases.geometric(1.0)),
        ),
        tokens_per_cycle=1 / 0.15,
        shares=(0.7, 0.3),
    )
    for num_requests, thresholds in ((1, (1, 1)), (8, (1, 1)), (8, (2, 3)), (40, (1, 1)), (40, (8, 4))):
        assert abs(error(setting, num_requests, *thresholds)) < 0.06, (num_requests, thresholds)
    unused = replace(setting, shares=(0.0, 1.0))
    pair = replace(setting, larger=setting.larger[1:], shares=(1.0,))
    assert predict(unused, 8, [1, 2]).tokens_per_s == pytest.approx(predict(pair, 8, [2]).tokens_per_s, rel=1e-6)


def test_waits_batches_and_utilisation_are_those_of_the_simulation() -> None:
    setting = contended(0.1)
    for num_requests, threshold in ((8, 3), (48, 12)):
        simulated = simulate(setting, num_requests, [threshold], num_cycles=8000, seed=2)
        predicted = predict(setting, num_requests, [threshold])
        assert predicted.batches[0] == pytest.approx(simulated.batches[0], rel=0.05)
        assert predicted.waits_s[0] == pytest.approx(simulated.waits_s[0], rel=0.12)
        assert np.allclose(predicted.busy, simulated.busy, atol=0.05)
        assert predicted.tokens_per_s_each == pytest.approx(predicted.tokens_per_s / num_requests)


def test_cases_side_by_side_are_those_one_by_one() -> None:
    setting = contended(0.1, hand_off_s=0.002)
    together = Chain(setting, 24).predict([[1], [6], [24]])
    for prediction in together:
        alone = predict(setting, 24, prediction.thresholds)
        assert prediction.tokens_per_s == pytest.approx(alone.tokens_per_s, rel=2e-3)


def test_a_threshold_beyond_all_requests_is_all_requests() -> None:
    setting = contended(0.1)
    assert predict(setting, 4, [9]).tokens_per_s == pytest.approx(predict(setting, 4, [4]).tokens_per_s)


@pytest.mark.parametrize(
    ("num_requests", "thresholds", "message"),
    [(0, [1], "at least one request"), (2, [0], "thresholds from 1 on"), (2, [1, 1], "1 thresholds")],
)
def test_refusals(num_requests: int, thresholds: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict(constant(0.1), num_requests, thresholds)


def test_tiers_that_could_wait_for_each_other_are_refused() -> None:
    tier = constant(0.1).larger[0]
    setting = replace(constant(0.1), larger=(tier, tier), shares=(0.5, 0.5))
    with pytest.raises(ValueError, match="wait for each other"):
        predict(setting, 4, [3, 3])

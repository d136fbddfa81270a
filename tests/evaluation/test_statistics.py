"""Intervals against known values, and formulas against numbers done by hand."""

import math

import numpy as np
import pytest
from allroads.evaluation.cost import ParameterCounts, Work, activated_parameters, full_cost, published_cost
from allroads.evaluation.statistics import Resamples, proportion


def test_wilson_interval_of_a_proportion() -> None:
    # R: prop.test(81, 263, correct = FALSE) gives 0.2553 to 0.3662 (Newcombe 1998, table I).
    found = proportion(81, 263)
    assert (found.value, found.low, found.high) == pytest.approx((81 / 263, 0.2553, 0.3662), abs=5e-5)
    assert proportion(0, 0).high == 1


def test_bootstrap_of_a_mean_agrees_with_the_normal_interval() -> None:
    values = np.random.default_rng(3).normal(10, 2, 400)
    found = Resamples(400, seed=0).mean(values.tolist())
    reach = 1.96 * values.std() / math.sqrt(400)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.03)


def test_bootstrap_of_a_ratio_keeps_answers_whole() -> None:
    # All that varies is which answers there are: each has the same share, so the ratio never moves.
    found = Resamples(20, seed=0).ratio([0.25 * n for n in range(1, 21)], list(range(1, 21)))
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert Resamples(3, seed=0).ratio([0, 0, 0], [0, 0, 0]).value == 0


def test_the_same_seed_draws_the_same() -> None:
    values = np.random.default_rng(0).random(50).tolist()
    assert Resamples(50, seed=1).mean(values) == Resamples(50, seed=1).mean(values)
    assert Resamples(50, seed=1).mean(values) != Resamples(50, seed=2).mean(values)


def test_cost_formulas_by_hand() -> None:
    # 90 tokens of a 1.5B model and 10 of a 32B one; 150 and 130 positions computed; 100 scored by 0.05B.
    work = Work(tokens=(90, 10), computed=(150, 130), num_scored=100)
    parameters = ParameterCounts((1_500_000_000, 32_000_000_000), 50_000_000)
    assert published_cost(work, parameters) == pytest.approx(90 * 1.5 + 10 * 32)
    assert activated_parameters(work, parameters) == pytest.approx(4.55)
    assert full_cost(work, parameters) == pytest.approx(150 * 1.5 + 130 * 32 + 100 * 0.05)
    assert activated_parameters(Work((0, 0), (5, 5)), parameters) == 0

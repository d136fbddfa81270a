"""Curves are found again from noisy steps, changes are followed, and nonsense does no harm."""

import math

import numpy as np
import pytest
from allroads.throughput.setting import Floats, StepCurve
from allroads.throughput.step_fit import KNOTS, StepFit, rising

Truth = tuple[float, float, float]
"""Base, per row, per position: seconds."""
HOME: Truth = (3e-3, 5e-5, 2e-5)


def steps_of(
    truth: Truth, rng: np.random.Generator, rows: Floats, *, slow_down: float = 1.4, overlap: Floats | None = None
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Noisy steps of a tier of which another's overlap makes a step slower."""
    positions = rows + rng.poisson(1.0, len(rows)) * rows
    part = rng.uniform(0.0, 1.0, len(rows)) if overlap is None else overlap
    base, row, position = truth
    seconds = (base + row * rows + position * positions) * (1.0 + (slow_down - 1.0) * part)
    seconds *= rng.lognormal(0.0, 0.1, len(rows))
    return rows.tolist(), positions.tolist(), seconds.tolist(), part.tolist()


def taught(truth: Truth, *, num_steps: int = 3000, prior_s: float = 0.1, **options: object) -> StepFit:
    """A fit that saw steps of 1 to 64 rows in many small portions."""
    rng, fit = np.random.default_rng(1), StepFit(prior_s)
    for portion in range(num_steps // 50):
        rows = np.floor(2.0 ** rng.uniform(0.0, 6.0, 50))
        fit.add(*steps_of(truth, rng, rows, **options), now_s=0.1 * portion)  # type: ignore[arg-type]
    return fit


def right(truth: Truth, rows: int, positions_per_row: float) -> float:
    base, row, position = truth
    return base + rows * (row + position * positions_per_row)


def test_curves_are_found_again() -> None:
    fit = taught(HOME)
    alone, co_running = fit.curves()
    assert alone.sizes == KNOTS
    for rows in (1, 3, 8, 32, 64, 128):
        expected = right(HOME, rows, fit.positions_per_row)
        assert alone.at(rows) == pytest.approx(expected, rel=0.04)
        assert co_running.at(rows) == pytest.approx(1.4 * expected, rel=0.04)


def test_alone_is_told_from_co_running_where_steps_mostly_overlap() -> None:
    rng, fit = np.random.default_rng(2), StepFit(0.1)
    for portion in range(60):
        overlap = np.where(rng.uniform(size=50) < 0.9, 1.0, rng.uniform(size=50))
        rows = np.floor(2.0 ** rng.uniform(0.0, 5.0, 50))
        fit.add(*steps_of(HOME, rng, rows, overlap=overlap), now_s=0.1 * portion)
    alone, co_running = fit.curves()
    for size in (1, 8, 32):
        expected = right(HOME, size, fit.positions_per_row)
        assert alone.at(size) == pytest.approx(expected, rel=0.08)
        assert co_running.at(size) == pytest.approx(1.4 * expected, rel=0.04)
    assert fit.overlap > 0.9


def test_always_overlapped_steps_are_predicted_as_they_are() -> None:
    fit = taught(HOME, overlap=np.ones(50))
    alone, co_running = fit.curves()
    assert co_running.at(8) == pytest.approx(1.4 * right(HOME, 8, fit.positions_per_row), rel=0.04)
    assert 0.7 * co_running.at(8) < alone.at(8) <= co_running.at(8)


def test_a_tier_that_another_does_not_slow_down() -> None:
    alone, co_running = taught(HOME, slow_down=1.0).curves()
    for rows in (1, 8, 64):
        assert co_running.at(rows) == pytest.approx(alone.at(rows), rel=0.03)


def test_a_bent_curve_is_followed_at_its_knots() -> None:
    rng, fit = np.random.default_rng(3), StepFit(1e-3)
    bent = StepCurve((1, 2, 4, 8, 16, 32), (4e-3, 4e-3, 4.1e-3, 5e-3, 12e-3, 24e-3))
    for portion in range(60):
        rows = 2.0 ** rng.integers(0, 6, 50)
        seconds = np.array([bent.at(size) for size in rows]) * rng.lognormal(0.0, 0.1, 50)
        fit.add(rows.tolist(), rows.tolist(), seconds.tolist(), [0.0] * 50, 0.1 * portion)
    alone, _ = fit.curves()
    for size in (1, 4, 8, 16, 32):
        assert alone.at(size) == pytest.approx(bent.at(size), rel=0.06)


def test_one_size_of_batch_is_enough_for_that_size() -> None:
    fit = StepFit(0.5)
    for portion in range(20):
        fit.add([8.0] * 10, [8.0] * 10, [0.01] * 10, [0.0] * 10, 0.1 * portion)
    alone, co_running = fit.curves()
    assert alone.at(8) == pytest.approx(0.01, rel=0.01)
    assert alone.at(1) < alone.at(8) < alone.at(64)
    assert co_running.at(8) >= alone.at(8)


def test_a_change_is_followed() -> None:
    rng, fit = np.random.default_rng(4), StepFit(0.01)
    slow = tuple(3.0 * value for value in HOME)
    for portion in range(240):
        rows = np.floor(2.0 ** rng.uniform(0.0, 5.0, 20))
        truth = HOME if portion < 120 else (slow[0], slow[1], slow[2])
        fit.add(*steps_of(truth, rng, rows, overlap=np.zeros(20)), now_s=1.0 * portion)
    assert fit.curves()[0].at(8) == pytest.approx(3.0 * right(HOME, 8, fit.positions_per_row), rel=0.08)


def test_idle_time_forgets_nothing() -> None:
    fit = taught(HOME)
    before = fit.num_effective
    fit.add([1.0], [1.0], [3e-3], [0.0], now_s=1e6)
    assert fit.num_effective > 0.9 * before


def test_much_that_is_seen_at_once_is_not_kept_for_ever() -> None:
    fit = StepFit(1e-3)
    for _ in range(30):
        fit.add([1.0] * 1000, [1.0] * 1000, [2e-3] * 1000, [0.0] * 1000, now_s=0.0)
    assert fit.num_effective == pytest.approx(20_000.0)


def test_a_process_that_was_held_up_counts_for_little() -> None:
    rng, fit = np.random.default_rng(5), StepFit(0.01)
    for portion in range(60):
        rows, positions, seconds, overlap = steps_of(HOME, rng, np.full(100, 4.0), overlap=np.zeros(100))
        seconds[0] = 5.0
        fit.add(rows, positions, seconds, overlap, now_s=0.1 * portion)
    assert fit.curves()[0].at(4) == pytest.approx(right(HOME, 4, fit.positions_per_row), rel=0.06)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 0.0, -1.0, 61.0, 1e300])
def test_nonsense_is_left_out(wrong: float) -> None:
    fit, same = taught(HOME), taught(HOME)
    fit.add([1.0, 2.0], [1.0, 2.0], [wrong, wrong], [0.5, 0.5], now_s=6.0)
    fit.add([wrong if wrong < 1 else math.nan], [1.0], [3e-3], [0.5], now_s=6.0)
    fit.add([1.0], [math.nan if wrong == 61.0 else -5.0], [3e-3], [0.5], now_s=6.0)
    fit.add([1.0], [1.0], [3e-3], [math.nan], now_s=6.0)
    fit.add([1.0, 2.0], [1.0], [3e-3], [0.5], now_s=6.0)
    fit.add([], [], [], [], now_s=6.0)
    assert fit.curves() == same.curves()


def test_nonsense_at_first_leaves_the_guess() -> None:
    fit = StepFit(0.02)
    fit.add([math.nan], [1.0], [math.nan], [0.0], now_s=0.0)
    alone, co_running = fit.curves()
    assert fit.num_effective == 0.0
    assert fit.mean_s is None
    assert alone.at(1) == pytest.approx(0.02, rel=0.05)
    assert alone.at(1) < co_running.at(1) < 1.5 * alone.at(1)


def test_steps_never_take_no_time() -> None:
    fit = StepFit(0.01)
    for portion in range(50):
        fit.add([1.0, 200.0], [1.0, 200.0], [0.05, 1e-6], [0.0, 1.0], now_s=float(portion))
    for curve in fit.curves():
        assert all(value > 0.0 for value in curve.seconds)
        assert list(curve.seconds) == sorted(curve.seconds)


def test_few_odd_steps_alone_do_not_slow_down_those_beside_another() -> None:
    fit = StepFit(0.01)
    for portion in range(40):
        fit.add([8.0] * 50, [8.0] * 50, [0.02] + [0.01] * 49, [0.1] + [1.0] * 49, 0.1 * portion)
    alone, co_running = fit.curves()
    assert co_running.at(8) == pytest.approx(0.01, rel=0.03)
    assert alone.at(8) <= co_running.at(8)


def test_what_falls_is_pooled() -> None:
    values = rising(np.array([1.0, 3.0, 2.0, 5.0, 4.0, 3.0]), np.array([1.0, 1.0, 3.0, 1.0, 1.0, 1.0]))
    assert values.tolist() == [1.0, 2.25, 2.25, 4.0, 4.0, 4.0]

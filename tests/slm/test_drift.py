"""Scores that have parted from those at calibration, and those that have not."""

import math
import random

import pytest
from allroads.slm.drift import DriftWatch, Recent

QUANTILES = [index / 20 for index in range(1, 20)]


def _index(watch: DriftWatch) -> float | None:
    return watch.index


def test_the_same_scores_have_not_parted() -> None:
    watch, rng = DriftWatch(QUANTILES), random.Random(0)
    for _ in range(5_000):
        watch.add(rng.random())
    assert watch.index is not None
    assert watch.index < 0.02


def test_other_scores_have() -> None:
    watch, rng = DriftWatch(QUANTILES), random.Random(0)
    for _ in range(5_000):
        watch.add(rng.random() ** 3)
    assert watch.index is not None
    assert watch.index > 0.25


def test_scores_that_pile_up_on_one_value_have_not_parted() -> None:
    """A third of all scores are 0.5 exactly, at calibration as now."""
    scores = [0.5 if index % 3 == 0 else (index * 0.61803) % 1 for index in range(9_000)]
    ordered = sorted(scores)
    watch = DriftWatch([ordered[len(ordered) * step // 20] for step in range(1, 20)])
    for score in scores:
        watch.add(score)
    assert watch.index is not None
    assert watch.index < 0.05


def test_it_forgets() -> None:
    watch, rng = DriftWatch(QUANTILES), random.Random(0)
    for _ in range(20_000):
        watch.add(rng.random() ** 3)
    for _ in range(120_000):
        watch.add(rng.random())
    assert watch.index is not None
    assert watch.index < 0.05


def test_little_is_not_judged_and_nan_is_no_score() -> None:
    watch = DriftWatch(QUANTILES)
    for _ in range(499):
        watch.add(0.99)
    for _ in range(1_000):
        watch.add(math.nan)
    assert _index(watch) is None
    for _ in range(20):
        watch.add(0.99)
    assert _index(watch) is not None
    silent = DriftWatch(())
    for _ in range(1_000):
        silent.add(0.5)
    assert silent.index is None


def test_recent_counts_fade_and_stay_finite() -> None:
    recent = Recent(2)
    for _ in range(1_000_000):
        recent.add(0)
    recent.add(1)
    zeros, ones = recent.counts
    assert zeros == pytest.approx(20_000, rel=0.01)
    assert ones == pytest.approx(1, rel=0.01)

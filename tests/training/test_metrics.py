"""Threshold, PR-AUC and calibration on cases small enough to do by hand."""

import math

import pytest
import torch
from allroads.training.calibration import fit_scale
from allroads.training.metrics import (
    average_precision,
    highest_quantile,
    lowest_ceiling,
    lowest_rate_threshold,
    quality_at,
)
from torch import Tensor

SCORES = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
POSITIVES = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize(("recall", "threshold"), [(0.3, 0.9), (1 / 3, 0.9), (0.5, 0.7), (2 / 3, 0.7), (1.0, 0.6)])
def test_the_highest_threshold_with_enough_recall(recall: float, threshold: float) -> None:
    found = lowest_rate_threshold(SCORES, POSITIVES, recall)
    assert found == pytest.approx(threshold)
    assert quality_at(found, SCORES, POSITIVES).recall >= recall - 1e-9


def test_no_positives_have_no_threshold() -> None:
    with pytest.raises(ValueError, match="no positives"):
        lowest_rate_threshold(SCORES, torch.zeros(6), 0.95)


def test_quality_by_hand() -> None:
    quality = quality_at(0.65, SCORES, POSITIVES)
    assert (quality.num_tokens, quality.num_positives, quality.base_rate) == (6, 3, 0.5)
    assert (quality.recall, quality.precision, quality.positive_rate) == (2 / 3, 2 / 3, 0.5)
    assert quality.pr_auc == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)


def test_nothing_chosen_is_zero_not_an_error() -> None:
    quality = quality_at(0.99, SCORES, torch.zeros(6))
    assert (quality.recall, quality.precision, quality.pr_auc) == (0, 0, 0)


def area_by_definition(scores: Tensor, positives: Tensor) -> float:
    area, recall_before = 0.0, 0.0
    for threshold in scores.unique().flip(0).tolist():
        chosen = scores >= threshold
        right = float(positives[chosen].sum())
        recall = right / float(positives.sum())
        area += (recall - recall_before) * right / int(chosen.sum())
        recall_before = recall
    return area


@pytest.mark.parametrize("levels", [5, 10_000])
def test_average_precision_equals_its_definition(levels: int) -> None:
    generator = torch.Generator().manual_seed(levels)
    positives = (torch.rand(800, generator=generator) < 0.05).float()
    scores = (torch.rand(800, generator=generator) * levels).floor() + positives
    assert average_precision(scores, positives) == pytest.approx(area_by_definition(scores, positives))


def test_calibration_takes_a_class_weight_out_again() -> None:
    generator = torch.Generator().manual_seed(0)
    honest = torch.randn(50_000, generator=generator) * 2 - 4
    positives = (torch.rand(50_000, generator=generator) < honest.sigmoid()).float()
    log_scale, shift = fit_scale(honest / 2 + math.log(20), positives)
    assert log_scale.exp().item() == pytest.approx(2, rel=0.05)
    assert shift.item() == pytest.approx(-2 * math.log(20), rel=0.05)


@pytest.mark.parametrize(("recall", "found"), [(0.3, 1), (1 / 3, 1), (0.5, 2), (2 / 3, 2), (1.0, 3)])
def test_the_lowest_ceiling_with_enough_recall(recall: float, found: int) -> None:
    suffices = 1 - SCORES
    ceiling = lowest_ceiling(suffices, POSITIVES, recall)
    assert int(POSITIVES[suffices < ceiling].sum()) == found
    below = float(torch.tensor(ceiling).nextafter(torch.tensor(0.0)))
    assert int(POSITIVES[suffices < below].sum()) == found - 1


def test_a_ceiling_is_at_most_one() -> None:
    ceiling = lowest_ceiling(torch.tensor([1.0, 0.5]), torch.tensor([1.0, 0.0]), 1.0)
    assert ceiling == 1.0


@pytest.mark.parametrize(("recall", "share", "quantile"), [(0.3, 0.8, 0.8), (0.5, 0.4, 0.6), (1.0, 0.2, 0.5)])
def test_the_highest_quantile_with_enough_recall(recall: float, share: float, quantile: float) -> None:
    found_share, threshold = highest_quantile(SCORES, POSITIVES, recall, 5)
    assert found_share == pytest.approx(share)
    assert threshold == pytest.approx(quantile)
    chosen = threshold < SCORES
    assert float(POSITIVES[chosen].sum() / POSITIVES.sum()) >= recall


def test_where_no_quantile_finds_enough_all_is_chosen() -> None:
    assert highest_quantile(SCORES, 1 - POSITIVES, 1.0, 5) == (0.0, 0.0)

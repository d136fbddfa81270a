"""Targets become thresholds: exact on small cases, monotone, and as the policies read them (C47)."""

import pytest
import torch
from allroads.errors import StartupError
from allroads.policies.citer import Citer
from allroads.policies.co_llm import CoLlm
from allroads.policies.policy import Proposals
from allroads.policies.r2r import R2R
from allroads.policies.threshold_rule import ThresholdRule, within
from allroads.router.calibration_file import Target
from allroads.training.threshold_targets import choose_threshold, side_of
from torch import Tensor

RULES: dict[str, ThresholdRule] = {"r2r": R2R(), "citer": Citer(), "co-llm": CoLlm()}
SCORES = torch.tensor([0.9, 0.8, 0.8, 0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.0])
POSITIVES = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
SATURATED = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.5, 1e-40])


def sent_by_policy(rule: ThresholdRule, scores: Tensor, threshold: float) -> list[bool]:
    """What the policy itself would do, number by number."""
    numbers = rule.numbers(Proposals([], [], scores=scores.tolist()))
    return [not rule.suffices(number, threshold) for number in numbers]


def urgent(name: str, scores: Tensor) -> Tensor:
    """The same scores for a scorer whose low ones are the urgent ones."""
    return 1 - scores if name == "citer" else scores


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("scores", [SCORES, SATURATED, torch.full((4,), 0.5)], ids=["plain", "saturated", "equal"])
def test_what_is_counted_is_what_the_policy_sends(name: str, scores: Tensor) -> None:
    side = side_of(name)
    thresholds = [0.0, 1.0, 0.5, 0.45, *scores.tolist()]
    for threshold in thresholds:
        assert side.sent(scores, threshold).tolist() == sent_by_policy(RULES[name], scores, threshold), threshold


@pytest.mark.parametrize("name", RULES)
def test_thresholds_of_all_and_none(name: str) -> None:
    side = side_of(name)
    assert {side.all, side.none} == {0.0, 1.0}
    assert bool(side.sent(SATURATED, side.all).all())
    assert not bool(side.sent(SATURATED, side.none).any())
    none, everything = (
        choose_threshold(side, SATURATED, torch.ones(6), Target(kind="share", value=share)) for share in (0.0, 1.0)
    )
    assert (none, everything) == (side.none, side.all)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("recall", "count"), [(0.2, 1), (0.25, 1), (0.3, 3), (0.5, 3), (0.75, 4), (0.76, 10), (1, 10)])
def test_enough_recall_with_as_few_tokens_as_can_be(name: str, recall: float, count: int) -> None:
    side, scores = side_of(name), urgent(name, SCORES)
    threshold = choose_threshold(side, scores, POSITIVES, Target(kind="recall", value=recall))
    sent = side.sent(scores, threshold)
    assert int(sent.sum()) == count
    assert float(POSITIVES[sent].sum()) / 4 >= recall


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("share", "count"), [(0.0, 0), (0.1, 1), (0.29, 1), (0.3, 3), (0.45, 4), (0.79, 5), (0.8, 8), (0.99, 9), (1.0, 10)]
)
def test_no_more_than_the_share_and_as_near_as_can_be(name: str, share: float, count: int) -> None:
    side, scores = side_of(name), urgent(name, SCORES)
    threshold = choose_threshold(side, scores, POSITIVES, Target(kind="share", value=share))
    assert int(side.sent(scores, threshold).sum()) == count


@pytest.mark.parametrize("name", RULES)
def test_share_grows_with_the_target_and_with_the_threshold_one_way(name: str) -> None:
    side = side_of(name)
    scores = torch.rand(5000, generator=torch.Generator().manual_seed(0)) ** 4
    positives = (torch.rand(5000, generator=torch.Generator().manual_seed(1)) < scores).float()
    shares, thresholds = [], []
    for target in torch.linspace(0, 1, 41).tolist():
        threshold = choose_threshold(side, scores, positives, Target(kind="share", value=target))
        shares.append(float(side.sent(scores, threshold).float().mean()))
        assert target - 0.001 < shares[-1] <= target + 1e-6
        thresholds.append(threshold)
    assert shares == sorted(shares)
    assert thresholds == sorted(thresholds, reverse=not side.is_low)


def test_a_share_between_equal_scores_is_refused_with_what_can_be_had() -> None:
    scores = torch.tensor([0.5, 0.5, 0.5, 0.1])
    with pytest.raises(StartupError, match=r"3 of 4 tokens that would go first .* choose 0.75 or more, or 0"):
        choose_threshold(side_of("r2r"), scores, torch.ones(4), Target(kind="share", value=0.5))


def test_recall_of_nothing_is_refused() -> None:
    with pytest.raises(StartupError, match="no divergent token among the 10 to calibrate on"):
        choose_threshold(side_of("r2r"), SCORES, torch.zeros(10), Target(kind="recall", value=0.5))


def test_the_ends_are_those_of_the_policies() -> None:
    assert within(1.0, 0.0, 1.0 - 2.0**-24) == float(side_of("r2r").urgency(torch.ones(1)))

"""Query-level routing at equal cost, on answers made up so that the right figures are known."""

import numpy as np
import pytest
from allroads.evaluation.query_level import TwoAnswers, curve, spend
from allroads.evaluation.report_file import QueryMethod

ONCE = np.ones((1, 4))


def answers(*, confidence: list[float]) -> TwoAnswers:
    """Four problems: the small model has the first two right, the large one all but the second."""
    return TwoAnswers(
        slm_right=np.array([1.0, 1.0, 0.0, 0.0]),
        llm_right=np.array([1.0, 0.0, 1.0, 1.0]),
        slm_cost=np.full(4, 1.0),
        llm_cost=np.full(4, 10.0),
        confidence=np.array(confidence),
    )


def accuracy(two: TwoAnswers, method: QueryMethod, budget: float) -> float:
    return float(spend(two, two.chosen_by(method), ONCE, np.array([budget])).accuracy[0])


@pytest.mark.parametrize(
    ("budget", "right"),
    [
        (1.0, 0.5),  # nothing but the small model
        (1.0 + 10 / 4, 0.75),  # one answer written anew, which is gained
        (1.0 + 15 / 4, 0.875),  # one and a half
        (1.0 + 30 / 4, 0.75),  # three, of which one is lost
        (99.0, 0.75),  # all
        (0.5, 0.5),  # less than the small model costs
    ],
)
def test_the_least_sure_are_written_anew_for_as_long_as_the_budget_lasts(budget: float, right: float) -> None:
    assert accuracy(answers(confidence=[0.0, -1.0, -3.0, -2.0]), "confidence", budget) == pytest.approx(right)


def test_random_choice_is_a_mixture() -> None:
    two = answers(confidence=[0.0] * 4)
    # A request at the large model costs 9 more, since the small one is not asked.
    assert accuracy(two, "random", 1 + 0.5 * 9) == pytest.approx(0.5 * 0.5 + 0.5 * 0.75)
    assert accuracy(two, "random", 99) == 0.75


def test_the_best_choice_never_loses_and_spends_no_more_than_it_must() -> None:
    two = answers(confidence=[0.0] * 4)
    assert accuracy(two, "best", 1 + 9 / 4) == pytest.approx(0.75)
    assert accuracy(two, "best", 99) == 1.0
    sent = spend(two, two.chosen_by("best"), ONCE, np.array([99.0])).request_share
    assert float(sent[0]) == 0.5


def test_weights_count_problems_as_often_as_they_were_drawn() -> None:
    two = answers(confidence=[0.0, -1.0, -3.0, -2.0])
    weights = np.array([[0.0, 0.0, 4.0, 0.0], [4.0, 0.0, 0.0, 0.0]])
    budgets = np.array([1.0 + 20 / 4, 1.0 + 20 / 4])
    found = spend(two, two.chosen_by("confidence"), weights, budgets)
    # Of four times the third problem two are gained; the first is right in any case.
    assert found.accuracy.tolist() == pytest.approx([0.5, 1.0])
    assert found.request_share.tolist() == pytest.approx([0.5, 0.5])


def test_confidence_beats_chance_where_it_tells_and_not_where_it_does_not() -> None:
    generator = np.random.default_rng(0)
    right = (generator.random(2000) < 0.5).astype(np.float64)
    two = TwoAnswers(right, np.ones(2000), np.full(2000, 0.01), np.ones(2000), right + generator.random(2000))
    blind = TwoAnswers(right, np.ones(2000), np.full(2000, 0.01), np.ones(2000), generator.random(2000))
    once, budget = np.ones((1, 2000)), np.array([0.26])
    telling = spend(two, two.chosen_by("confidence"), once, budget).accuracy[0]
    chance = spend(two, two.chosen_by("random"), once, budget).accuracy[0]
    guessing = spend(blind, blind.chosen_by("confidence"), once, budget).accuracy[0]
    assert telling == pytest.approx(right.mean() + 0.25, abs=1e-9)
    assert chance == pytest.approx(right.mean() + 0.125, abs=0.01)
    assert guessing == pytest.approx(right.mean() + 0.125, abs=0.03)


def test_curves_run_from_the_small_model_to_the_end_of_the_choice() -> None:
    two = answers(confidence=[0.0, -1.0, -3.0, -2.0])
    costs, accuracies = curve(two, two.chosen_by("confidence"))
    assert (costs[0], costs[-1]) == pytest.approx((1.0, 11.0))
    assert (accuracies[0], accuracies[-1]) == pytest.approx((0.5, 0.75))
    assert max(accuracies) == pytest.approx(1.0, abs=0.02)

"""Query-level routing at equal cost: one model writes a whole answer, as RouteLLM does (arXiv 2406.18665).

No answer is asked for: both models have answered every problem already, so what any choice of a model for each
problem comes to is known exactly. Three ways to choose:

- `confidence`: the small model answers, and the problems that it was least sure of (lowest mean log-probability of its
  own answer) go to the large one. Its answer is paid for in every case. This needs no training and sees more than a
  router that reads the prompt alone.
- `random`: any problem with the same probability; in expectation, without drawing. The control.
- `best`: those that only the large model gets right, cheapest first. No router can know; the ceiling for all of them.

The cost meets the budget exactly: the last problem is sent with a probability.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .report_file import QueryMethod
from .statistics import Floats

METHODS: tuple[QueryMethod, ...] = ("confidence", "random", "best")


@dataclass(frozen=True, slots=True)
class TwoAnswers:
    """Both models' answers to the same problems; arrays of one number a problem."""

    slm_right: Floats
    llm_right: Floats
    """1 or 0."""
    slm_cost: Floats
    llm_cost: Floats
    confidence: Floats
    """The small model's mean log-probability of its own answer."""

    def chosen_by(self, method: QueryMethod) -> "Choice":
        """The problems in the order in which they go to the large model."""
        gain, saved = self.llm_right - self.slm_right, self.llm_cost - self.slm_cost
        if method == "confidence":
            return Choice(np.argsort(self.confidence, kind="stable"), gain, self.llm_cost)
        if method == "best":
            order = np.lexsort((saved, -gain))
            return Choice(order[gain[order] > 0], gain, saved)
        return Choice(None, gain, saved)


@dataclass(frozen=True, slots=True)
class Choice:
    """Who goes to the large model, in which order, and what that adds."""

    order: "np.typing.NDArray[np.intp] | None"
    """Problems by index; None for any at random."""
    gain: Floats
    """Right answers that are gained by sending a problem."""
    cost: Floats
    """What sending it adds."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a choice came to, one number for each row of weights."""

    accuracy: Floats
    request_share: Floats


def spend(answers: TwoAnswers, choice: Choice, weights: Floats, budgets: Floats) -> Spent:
    """Send problems until a budget is spent.

    Args:
        answers: of both models.
        choice: whom to send.
        weights: [rows, problems], how often each problem counts; a row adds up to the number of problems.
        budgets: [rows], cost per answer.
    """
    num_problems = weights.shape[1]
    left = budgets * num_problems - weights @ answers.slm_cost
    right = weights @ answers.slm_right
    order = choice.order
    if order is None:
        share = np.clip(left / np.maximum(weights @ choice.cost, 1e-300), 0, 1)
        return Spent((right + share * (weights @ choice.gain)) / num_problems, share)
    if not len(order):
        return Spent(right / num_problems, np.zeros_like(right))
    chosen: Floats = weights[:, order]
    added = chosen * choice.cost[order]
    spent = np.cumsum(added, axis=1)
    # Of each problem the part that the budget allows; after the first that it does not allow in full, none.
    rest = left[:, None] - (spent - added)
    part = np.where(added > 0, np.clip(rest / np.where(added > 0, added, 1.0), 0, 1), rest >= 0)
    part[:, 1:] *= np.cumprod(part[:, :-1] >= 1, axis=1)
    gained = (part * chosen * choice.gain[order]).sum(axis=1)
    return Spent((right + gained) / num_problems, (part * chosen).sum(axis=1) / num_problems)


def curve(answers: TwoAnswers, choice: Choice, num_points: int = 41) -> tuple[list[float], list[float]]:
    """Costs per answer and accuracies, from none sent to all that the choice would ever send."""
    num_problems = len(answers.slm_right)
    everyone = np.ones((1, num_problems))
    sent = choice.cost if choice.order is None else choice.cost[choice.order]
    lowest = answers.slm_cost.mean()
    costs: Sequence[float] = np.linspace(lowest, lowest + sent.sum() / num_problems, num_points).tolist()
    accuracies = [float(spend(answers, choice, everyone, np.array([cost])).accuracy[0]) for cost in costs]
    return list(costs), accuracies

"""A routed arm against the large model, random routing, and one model for each request, on the same problems."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .answers import Answer
from .cost import ParameterCounts
from .figures import full_costs, interval, published_costs
from .query_level import METHODS, TwoAnswers, curve, spend
from .report_file import FORMULAS, Comparison, CostFormula, QueryCurve, QueryFigures, QueryMethod
from .statistics import Floats, Resamples


@dataclass(frozen=True, slots=True)
class Ends:
    """What each model answers alone."""

    slm: Sequence[Answer]
    """With log-probabilities."""
    llm: Sequence[Answer]
    parameters: ParameterCounts

    def two_answers(self, formula: CostFormula) -> TwoAnswers | None:
        """Both models' answers at the costs of a formula; None where these are not known."""
        slm, llm = costs(self.slm, self.parameters, formula), costs(self.llm, self.parameters, formula)
        if slm is None or llm is None:
            return None
        # An answer without a token says nothing of how sure the model was.
        confidence = [answer.logprob if answer.logprob is not None else -np.inf for answer in self.slm]
        return TwoAnswers(_right(self.slm), _right(self.llm), slm, llm, np.asarray(confidence, np.float64))


def costs(answers: Sequence[Answer], parameters: ParameterCounts, formula: CostFormula) -> Floats | None:
    """Of each answer; None where they are not known."""
    found = published_costs(answers, parameters) if formula == "published" else full_costs(answers, parameters)
    return None if found is None else np.asarray(found, np.float64)


def compare(
    name: str,
    answers: Sequence[Answer],
    ends: Ends,
    control: Sequence[Answer] | None,
    parameters: ParameterCounts,
    resamples: Resamples,
) -> Comparison:
    """One arm's answers against all else.

    Args:
        name: of the arm.
        answers: in the order of the problems, as are all others.
        ends: both models alone.
        control: random routing at the same share, where the mesh serves it.
        parameters: those that the arm's costs count, the router's included.
        resamples: of the problems.
    """
    right, llm = _right(answers), _right(ends.llm)
    queries = []
    for formula in FORMULAS:
        two, own = ends.two_answers(formula), costs(answers, parameters, formula)
        if two is not None and own is not None:
            queries += [_query(method, formula, two, right, own, resamples) for method in METHODS]
    return Comparison(
        arm=name,
        of_llm=interval(resamples.ratio(right.tolist(), llm.tolist())),
        over_random=None if control is None else interval(resamples.mean((right - _right(control)).tolist())),
        queries=tuple(queries),
    )


def _query(
    method: QueryMethod, formula: CostFormula, two: TwoAnswers, right: Floats, own: Floats, resamples: Resamples
) -> QueryFigures:
    choice = two.chosen_by(method)
    once = np.ones((1, resamples.num_problems))
    found = spend(two, choice, once, np.array([own.mean()]))
    accuracy = float(found.accuracy[0])
    # In every draw of problems the budget is what the arm costs on them.
    drawn = spend(two, choice, resamples.weights, resamples.weights @ own / resamples.num_problems).accuracy
    theirs = resamples.weights @ right / resamples.num_problems
    return QueryFigures(
        method=method,
        formula=formula,
        request_share=float(found.request_share[0]),
        accuracy=interval(resamples.interval(accuracy, drawn)),
        difference=interval(resamples.interval(float(right.mean()) - accuracy, theirs - drawn)),
    )


def query_curves(ends: Ends) -> list[QueryCurve]:
    """All of them."""
    curves = []
    for formula in FORMULAS:
        if (two := ends.two_answers(formula)) is None:
            continue
        for method in METHODS:
            spent, accuracies = curve(two, two.chosen_by(method))
            curves.append(QueryCurve(method=method, formula=formula, costs=tuple(spent), accuracies=tuple(accuracies)))
    return curves


def _right(answers: Sequence[Answer]) -> Floats:
    return np.asarray([answer.right is True for answer in answers], np.float64)

"""R2R, CITER, Co-LLM and the entropy: one number against a threshold, the borders and NaN among them."""

import math
from typing import Any

import pytest
from allroads.policies.citer import Citer
from allroads.policies.co_llm import CoLlm
from allroads.policies.entropy import Entropy
from allroads.policies.policy import ACCEPT, Proposals, reject
from allroads.policies.r2r import R2R
from allroads.policies.threshold_rule import ThresholdRule

from .views import route_one, view

EPSILON = 1e-9
RULES = (R2R(), Citer(), CoLlm(), Entropy())


@pytest.mark.parametrize(
    ("policy", "below", "at", "above"),
    [(R2R(), 0, 1, 1), (Citer(), 1, 0, 0), (CoLlm(), 0, 0, 1), (Entropy(), 0, 1, 1)],
    ids=lambda value: getattr(value, "name", None),
)
def test_each_side_of_the_threshold(policy: ThresholdRule, below: int, at: int, above: int) -> None:
    request = view(policy, num_tiers=3, given={"threshold": 0.5})
    tiers = []
    for number in (0.5 - EPSILON, 0.5, 0.5 + EPSILON):
        verdict = route_one(policy, request, **_number(policy, number))
        assert verdict in (ACCEPT, reject(2))
        tiers.append(int(verdict.tier == 2))
    assert tiers == [below, at, above]


@pytest.mark.parametrize("policy", RULES, ids=lambda policy: policy.name)
def test_nan_goes_to_the_large_model(policy: ThresholdRule) -> None:
    for ends in (policy.never, policy.always, {}):
        request = view(policy, given=dict(ends or {}))
        assert route_one(policy, request, **_number(policy, math.nan)) == reject(1)


@pytest.mark.parametrize("policy", RULES, ids=lambda policy: policy.name)
def test_the_ends_are_all_and_nothing_also_where_float32_is_saturated(policy: ThresholdRule) -> None:
    assert policy.never is not None
    assert policy.always is not None
    for number in (0.0, 1e-45, 0.3, 1.0 - 2.0**-24, 1.0):
        assert route_one(policy, view(policy, given=dict(policy.never)), **_number(policy, number)) == ACCEPT
        assert route_one(policy, view(policy, given=dict(policy.always)), **_number(policy, number)) == reject(1)


def test_each_request_has_its_own_threshold() -> None:
    policy = R2R()
    requests = [view(policy, given={"threshold": value}) for value in (0.2, 0.6)]
    verdicts = policy.route(Proposals(requests, [1, 1], scores=[0.4, 0.4]))
    assert verdicts == [reject(1), ACCEPT]


def _number(policy: ThresholdRule, number: float) -> dict[str, Any]:
    return {"entropies" if policy.scorer is None else "scores": number}

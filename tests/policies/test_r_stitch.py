"""R-Stitch: out of the small model with its token dropped, back with the large one's kept."""

import math

import pytest
from allroads.policies.policy import ACCEPT, Verdict, Visit, reject
from allroads.policies.r_stitch import RStitch

from .views import route_one, view

POLICY = RStitch()
STAYS = Verdict(keeps=True, tier=1)
MOST = math.log(100)
"""Entropy of the uniform distribution over the 100 tokens that requests here have."""


@pytest.mark.parametrize(("share", "is_sure"), [(0.0299, True), (0.03, True), (0.0301, False), (1.0, False)])
def test_each_model_goes_on_or_hands_over(share: float, is_sure: bool) -> None:
    request = view(POLICY)
    # A little less, since the share is computed back.
    entropy = share * MOST * (1 - 1e-12)
    assert route_one(POLICY, request, entropies=entropy) == (ACCEPT if is_sure else reject(1))
    assert route_one(POLICY, request, tier=1, entropies=entropy) == (ACCEPT if is_sure else STAYS)


def test_the_share_is_of_the_tokens_that_the_tokenizer_knows() -> None:
    for num_tokens, verdict in ((100, reject(1)), (10_000, ACCEPT)):
        request = view(POLICY, num_tokens=num_tokens, given={"threshold": 0.4})
        assert route_one(POLICY, request, entropies=0.5 * MOST) == verdict


def test_the_ends_hold_whatever_rounding_does() -> None:
    never, always = (view(POLICY, given=dict(ends or {})) for ends in (POLICY.never, POLICY.always))
    for entropy in (-0.0, 0.0, 1e-30, MOST, MOST * (1 + 1e-6)):
        assert route_one(POLICY, never, entropies=entropy) == ACCEPT
        assert route_one(POLICY, always, entropies=entropy) == reject(1)
        assert route_one(POLICY, always, tier=1, entropies=entropy) == STAYS


def test_nan_is_for_the_large_model() -> None:
    assert route_one(POLICY, view(POLICY), entropies=math.nan) == reject(1)
    assert route_one(POLICY, view(POLICY), tier=1, entropies=math.nan) == STAYS


def test_a_visit_may_last_for_the_rest_of_the_answer() -> None:
    assert POLICY.routes_at_tiers
    assert POLICY.send(view(POLICY, max_tokens=50, position=8), 1) == Visit(42)

"""How long drafts are: bounded, by the room that is left, and by how many stood before."""

import math
from typing import Any

import pytest
from allroads.policies.bild import Bild
from allroads.policies.cascade import CascadeV3
from allroads.policies.drafting import AdaptiveDrafting, best_length
from allroads.policies.policy import Policy, RequestView, Return, hold, submit
from allroads.policies.speculative import Lossless, Speculative

from .views import route_one, view

FIXED = {"draft_tokens": 4, "adaptive": 0}
ADAPTIVE: list[AdaptiveDrafting] = [Lossless(), Speculative()]


def _drafted(policy: Policy, request: RequestView, **numbers: Any) -> int:
    """Drafts that are sent together."""
    request.num_drafts = 0
    while route_one(policy, request, **numbers) == hold(request.large):
        request.num_drafts += 1
    assert route_one(policy, request, **numbers) == submit(request.large)
    return request.num_drafts + 1


@pytest.mark.parametrize("policy", ADAPTIVE, ids=lambda policy: policy.name)
def test_a_fixed_length(policy: AdaptiveDrafting) -> None:
    request = view(policy, num_tiers=3, given=FIXED)
    for num_accepted in (4, 0, 2):
        assert _drafted(policy, request) == 4
        assert policy.receive(request, Return(2, [5], num_drafts=4, num_accepted=num_accepted)) == 1
    assert _drafted(CascadeV3(), view(CascadeV3(), given={"alpha": 0.1})) == 5
    assert _drafted(Bild(), view(Bild()), max_probabilities=0.9) == 10


@pytest.mark.parametrize("left", range(1, 7))
def test_no_more_than_the_answer_has_room_for(left: int) -> None:
    for policy, given in ((Lossless(), FIXED), (CascadeV3(), {"alpha": 0, "draft_tokens": 4})):
        request = view(policy, given=given, max_tokens=20, position=20 - left)
        assert _drafted(policy, request) == min(left, 4)
    request = view(Bild(), given={"draft_tokens": 4}, max_tokens=20, position=20 - left)
    assert _drafted(Bild(), request, max_probabilities=1.0) == min(left, 4)


@pytest.mark.parametrize(("share", "cost"), [(0.0, 0.1), (0.3, 0.05), (0.8, 0.15), (0.95, 0.02), (0.99, 1.0)])
def test_the_length_commits_most_for_its_cost(share: float, cost: float) -> None:
    def worth(count: int) -> float:
        """Tokens committed a pass, case by case: the first `n` drafts stand, then one falls or none is left."""
        falls = sum((share**n * (1 - share)) * (n + 1) for n in range(count))
        return (falls + share**count * (count + 1)) / (1 + cost * count)

    best = best_length(share, 16, cost)
    assert all(worth(best) >= worth(count) - 1e-12 for count in range(1, 17))
    assert best_length(share, 3, cost) <= 3


@pytest.mark.parametrize("policy", ADAPTIVE, ids=lambda policy: policy.name)
def test_the_length_follows_what_stands(policy: AdaptiveDrafting) -> None:
    request = view(policy, given={"draft_tokens": 12})
    lengths = [_drafted(policy, request)]
    for _ in range(12):
        policy.receive(request, Return(1, [5], num_drafts=lengths[-1], num_accepted=lengths[-1]))
        lengths.append(_drafted(policy, request))
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1] == 12
    for _ in range(30):
        policy.receive(request, Return(1, [5], num_drafts=lengths[-1], num_accepted=0))
        lengths.append(_drafted(policy, request))
    assert lengths[-1] == 1
    assert lengths[13:] == sorted(lengths[13:], reverse=True)


def test_drafts_after_the_first_that_fell_are_not_counted_as_judged() -> None:
    """Of draft runs that fall with a fixed probability, the length is the best one for it, whatever the length is."""
    policy = Lossless()
    for kept_of_five, share in ((4, 0.8), (3, 0.6)):
        request = view(policy, given={"draft_tokens": 16, "draft_cost": 0.05})
        lengths = []
        for turn in range(400):
            length = _drafted(policy, request)
            # A stream in which every fifth (or each of two of five) drafts falls, spread by the golden ratio.
            num_accepted = int(math.log1p(-((turn * 0.6180339887498949) % 1)) / math.log(share))
            policy.receive(request, Return(1, [5], num_drafts=length, num_accepted=min(num_accepted, length)))
            lengths.append(length)
        mean = sum(lengths[50:]) / len(lengths[50:])
        assert abs(mean - best_length(kept_of_five / 5, 16, 0.05)) < 1.0


def test_only_the_judgement_counts_of_a_visit_told_in_parts() -> None:
    policy = Lossless()
    request, other = view(policy), view(policy)
    policy.receive(request, Return(1, [5], num_drafts=5, num_accepted=2, is_over=False))
    policy.receive(other, Return(1, [5], num_drafts=5, num_accepted=2))
    assert policy.receive(request, Return(1, [6, 7])) == 2
    assert request.memory == other.memory


def test_bild_drops_what_it_is_unsure_of() -> None:
    policy = Bild()
    request = view(policy, num_tiers=3)
    for highest, verdict in (
        (0.6, hold(2)), (0.5999, submit(2, keeps=False)), (math.nan, submit(2, keeps=False)),
    ):  # fmt: skip
        for num_drafts in (0, 3):
            request.num_drafts = num_drafts
            assert route_one(policy, request, max_probabilities=highest) == verdict
    request.num_drafts = 9
    assert route_one(policy, request, max_probabilities=0.7) == submit(2)
    assert route_one(policy, request, max_probabilities=0.5) == submit(2, keeps=False)

"""What the large model says of drafts: exact counts, and each request as if it were alone."""

import math
from typing import Any

import pytest
import torch
from allroads.engine.sampling import SamplingParams, sample
from allroads.errors import Internal
from allroads.policies.bild import Bild
from allroads.policies.cascade import CASCADES, Cascade, CascadeV2, CascadeV3
from allroads.policies.policy import Drafts, Judgement, Policy, RequestView
from allroads.policies.registry import PolicyRegistry
from allroads.policies.speculative import Lossless, Speculative
from torch import Tensor

from .views import Value, draft_of, join, peaked, view

VOCABULARY = 11
CASCADED: list[Cascade] = [kind() for kind in CASCADES]
FAMILY: list[Policy] = [Lossless(), Speculative(), Bild(), *CASCADED]
by_name = pytest.mark.parametrize("policy", FAMILY, ids=lambda policy: policy.name)


def _strict(policy: Policy, **fields: Any) -> RequestView:
    """A request that keeps only what the large model would write."""
    # BiLD at its strictest undoes even a token that is the large model's own, and writes it anew.
    given = {} if isinstance(policy, Bild) else dict(policy.always or {})
    return view(policy, given=given, **fields)


def _given(policy: Policy) -> dict[str, Value]:
    """What must be named, at some middling value."""
    return {own.name: 0.2 if own.name == "alpha" else 0.5 for own in policy.parameters if own.default is None}


def _small(policy: Policy, request: RequestView, token_ids: list[int]) -> Tensor | None:
    return peaked(token_ids, VOCABULARY) if policy.wants_draft_logits(request) else None


@by_name
@pytest.mark.parametrize("is_greedy", [True, False], ids=["greedy", "sampled"])
@pytest.mark.parametrize("count", range(1, 9))
def test_every_number_of_drafts_that_stand_is_counted(policy: Policy, is_greedy: bool, count: int) -> None:
    """C28: for k drafts of which the first n agree, n stand and the large model's own token comes after them."""
    for num_right in range(count + 1):
        request = _strict(policy, is_greedy=is_greedy, seed=count)
        own = [(3 * place + count) % VOCABULARY for place in range(count + 1)]
        token_ids = [own[j] if j != num_right else (own[j] + 1) % VOCABULARY for j in range(count)]
        large = peaked(own, VOCABULARY, height=40.0)
        (judgement,) = policy.verify(draft_of(request, token_ids, large, _small(policy, request, token_ids)))
        written = None if isinstance(policy, Cascade) and num_right == count else own[num_right]
        assert judgement == Judgement(num_right, written)


@pytest.mark.parametrize("policy", FAMILY[:3], ids=lambda policy: policy.name)
def test_without_drafts_the_large_model_writes_one_token(policy: Policy) -> None:
    for is_greedy in (True, False):
        request = view(policy, is_greedy=is_greedy)
        small = torch.empty(0, VOCABULARY) if policy.wants_draft_logits(request) else None
        assert policy.verify(draft_of(request, [], peaked([4], VOCABULARY), small)) == [Judgement(0, 4)]


@by_name
def test_each_request_is_judged_as_if_alone(policy: Policy) -> None:
    """Drafts of many lengths, greedy and not, of more rows than are laid out at once."""
    generator = torch.Generator().manual_seed(3)
    parts = []
    for index in range(60):
        request = view(policy, given=_given(policy), is_greedy=index % 3 == 0, seed=index, position=index)
        count = 1 + index % 7
        logits = 2 * torch.randn(2, count + 1, VOCABULARY, generator=generator)
        logits[1] = logits[0] + 0.3 * logits[1]
        params = SamplingParams(
            temperature=0.0 if request.is_greedy else 0.8, seed=index, top_k=index % 5, frequency_penalty=0.5
        )
        rows = draft_of(request, [0] * count, logits[0], None, params).rows[0][:-1]
        token_ids = sample(logits[1, :-1], rows).tolist()
        small = logits[1, :-1] if policy.wants_draft_logits(request) else None
        parts.append(draft_of(request, token_ids, logits[0], small, params))
    alone = [policy.verify(part)[0] for part in parts]
    assert policy.verify(join(parts)) == alone
    assert policy.verify(join(parts[::-1])) == alone[::-1]
    assert len({judgement.num_accepted for judgement in alone}) > 3


def test_greedy_means_what_sampling_means_by_it() -> None:
    """Penalties, bias and the shortest answer count for the large model's own token."""
    large = peaked([1, 1, 1, 1], VOCABULARY, height=5.0)
    params = SamplingParams(temperature=0.0, logit_bias=((1, -100.0), (2, 50.0)), frequency_penalty=2.0)
    for policy in (Lossless(), Speculative()):
        assert policy.verify(draft_of(view(policy), [2, 2, 1], large, None, params)) == [Judgement(2, 2)]
    ends = SamplingParams(temperature=0.0, stop_token_ids=frozenset({1}), min_tokens=2)
    second = int(large[0].topk(2).indices[1])
    assert Lossless().verify(draft_of(view(Lossless()), [1], large[:2], None, ends)) == [Judgement(0, second)]


def test_lossless_writes_what_the_large_model_would_alone() -> None:
    generator = torch.Generator().manual_seed(5)
    large = 2 * torch.randn(9, VOCABULARY, generator=generator)
    stood = 0
    for seed in range(200):
        params = SamplingParams(temperature=0.9, top_p=0.9, seed=seed)
        request = view(Lossless(), is_greedy=False, seed=seed, position=seed % 5)
        rows = draft_of(request, [0] * 8, large, None, params).rows[0]
        own = sample(large, rows).tolist()
        small = large[:-1] + 0.5 * torch.randn(8, VOCABULARY, generator=generator)
        token_ids = sample(small, rows[:-1]).tolist()
        (judgement,) = Lossless().verify(draft_of(request, token_ids, large, None, params))
        count = judgement.num_accepted
        assert [*token_ids[:count], judgement.token_id] == own[: count + 1]
        stood += count
    assert stood > 400, "drafts drawn by the same numbers should often agree"


def test_padding_of_either_model_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(6)
    for policy in (Speculative(), *CASCADED):
        for seed in range(30):
            request = view(policy, given=_given(policy), is_greedy=False, seed=seed)
            large = torch.randn(4, VOCABULARY, generator=generator)
            small = torch.randn(3, VOCABULARY, generator=generator)
            padded = torch.nn.functional.pad(large, (0, 5), value=-math.inf)
            plain = policy.verify(draft_of(request, [1, 2, 3], large, small))
            assert policy.verify(draft_of(request, [1, 2, 3], padded, small)) == plain
            other = torch.nn.functional.pad(small, (0, 2), value=-math.inf)
            assert policy.verify(draft_of(request, [1, 2, 3], padded, other)) == plain


def test_what_must_travel_is_said_and_missed() -> None:
    wants = {
        (policy.name, is_greedy): policy.wants_draft_logits(
            view(policy, num_tiers=3, given=_given(policy), is_greedy=is_greedy)
        )
        for policy in PolicyRegistry.load().all()
        for is_greedy in (True, False)
    }
    need = {f"cascade-{rule}" for rule in ("chow", "diff", "opt", "v1", "v2", "v3")}
    assert {name for (name, is_greedy), it in wants.items() if it and not is_greedy} == need | {"speculative"}
    assert {name for (name, is_greedy), it in wants.items() if it and is_greedy} == need - {"cascade-v2", "cascade-v3"}
    with pytest.raises(Internal, match="without the small model's logits"):
        Speculative().verify(draft_of(view(Speculative(), is_greedy=False), [1], torch.zeros(2, VOCABULARY)))


def test_policies_without_drafts_say_so() -> None:
    with pytest.raises(NotImplementedError, match="citer sends no drafts"):
        PolicyRegistry.load().get("citer").verify(Drafts([], [], [], [], []))


Q, P = [0.5, 0.3, 0.2], [0.1, 0.3, 0.6]
"""The two models' distributions over three tokens; their distance is 0.4."""


@pytest.mark.parametrize(
    ("rule", "alpha", "accepted"),
    [
        ("chow", 0.501, [0, 1, 2]), ("chow", 0.499, []),
        ("diff", 0.101, [0, 1, 2]), ("diff", 0.099, []),
        ("opt", 0.251, [0, 1, 2]), ("opt", 0.249, []),
        ("v1", 0.099, []), ("v1", 0.101, [0]), ("v1", 0.301, [0, 1]), ("v1", 0.401, [0, 1, 2]),
        ("v2", 0.0, [2]), ("v2", 0.299, [2]), ("v2", 0.301, [1, 2]), ("v2", 0.501, [0, 1, 2]),
        ("v3", 0.0, [2]), ("v3", 0.499, [2]), ("v3", 0.501, [1, 2]), ("v3", 0.834, [0, 1, 2]),
        ("v2", -0.001, []), ("v3", -0.001, []),
    ],
)  # fmt: skip
def test_the_rules_of_cascades_under_greedy(rule: str, alpha: float, accepted: list[int]) -> None:
    """The large model's own token, 2, stands by any rule."""
    policy = PolicyRegistry.load().get(f"cascade-{rule}")
    small, large = torch.tensor([Q]).log(), torch.tensor([P, P]).log()
    for token_id in range(3):
        request = view(policy, given={"alpha": alpha})
        (judgement,) = policy.verify(draft_of(request, [token_id], large, small))
        stands = token_id in accepted or token_id == 2
        assert judgement == (Judgement(1, None) if stands else Judgement(0, 2))


@pytest.mark.parametrize("policy", CASCADED, ids=lambda policy: policy.name)
def test_at_the_highest_alpha_all_drafts_stand(policy: Cascade) -> None:
    generator = torch.Generator().manual_seed(8)
    assert policy.never is not None
    for seed in range(50):
        request = view(policy, given=dict(policy.never), is_greedy=seed % 2 == 0, seed=seed)
        params = SamplingParams(temperature=0.0 if request.is_greedy else 1.0, seed=seed)
        small = 10 * torch.randn(6, VOCABULARY, generator=generator)
        # Now and then the two models are one.
        large = torch.cat([small, small[:1]]) if seed % 5 == 0 else 10 * torch.randn(7, VOCABULARY, generator=generator)
        token_ids = sample(small, draft_of(request, [0] * 5, small, None, params).rows[0]).tolist()
        (judgement,) = policy.verify(draft_of(request, token_ids, large, small, params))
        assert judgement == Judgement(6, None)


@pytest.mark.parametrize("policy", [CascadeV2(), CascadeV3()], ids=lambda policy: policy.name)
def test_rules_read_raw_distributions(policy: Cascade) -> None:
    """A temperature changes what is drawn, not what is accepted."""
    large, small = torch.tensor([P, P]).log(), torch.tensor([Q]).log()
    for temperature in (0.05, 1.0, 3.0):
        params = SamplingParams(temperature=temperature, seed=1)
        request = view(policy, given={"alpha": 0.6}, is_greedy=False)
        assert policy.verify(draft_of(request, [1], large, small, params)) == [Judgement(1, None)]


def test_bild_undoes_from_the_first_unlikely_draft_on() -> None:
    policy = Bild()
    # -log p of 0 is 5.01, of 1 is 4.99; the best is 2.
    least = [math.exp(-5.01), math.exp(-4.99)]
    row = [*least, 1 - sum(least)]
    large = torch.tensor([row] * 4, dtype=torch.float64).log()
    for token_ids, num_accepted in (([1, 2, 1], 3), ([1, 0, 1], 1), ([0, 1, 2], 0), ([2, 2, 0], 2)):
        assert policy.verify(draft_of(view(policy), token_ids, large)) == [Judgement(num_accepted, 2)]
    # Raw: a bias on what is drawn changes its own token alone.
    params = SamplingParams(temperature=0.0, logit_bias=((0, 50.0),))
    assert policy.verify(draft_of(view(policy), [1, 0, 1], large, None, params)) == [Judgement(1, 0)]

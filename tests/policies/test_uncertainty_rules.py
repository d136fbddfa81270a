"""R2R's cheap rules: by tables of uncertainty worked out by hand, and by logits that nobody can judge."""

import math

import pytest
import torch
from allroads.errors import InvalidArgument
from allroads.policies import dirichlet, small_rule
from allroads.policies.immediate import Immediate
from allroads.policies.momentum import Momentum
from allroads.policies.policy import ACCEPT, Policy, Proposals, reject
from allroads.policies.rolling import Rolling
from allroads.policies.small_rule import SmallRule
from torch.distributions import Dirichlet

from .views import route_one, view

FLAT = [8.0] * 10
"""Unsure: 2.27 nats, and 0.111 epistemic."""
SURE = [30.0] + [0.5] * 9
BAD = [[math.nan] * 10, [-math.inf] * 10, [5.0] * 9 + [-1.0], [1.0, -1.0] * 5, [math.inf] + [1.0] * 9]
RULES: list[Policy] = [Immediate(), Momentum(), Rolling()]
names = pytest.mark.parametrize("policy", RULES, ids=lambda policy: policy.name)


def test_aleatoric_is_the_expected_entropy_of_the_dirichlet_distribution() -> None:
    torch.manual_seed(0)
    for logits in (FLAT, SURE, [9.0, 7.0, 6.5, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.1]):
        drawn = Dirichlet(torch.tensor(logits, dtype=torch.float64)).sample((200_000,))
        expected = float(-torch.xlogy(drawn, drawn).sum(dim=-1).mean())
        assert dirichlet.aleatoric([logits])[0] == pytest.approx(expected, abs=0.003)


def test_aleatoric_by_the_recurrence_of_digamma() -> None:
    """psi(n + 1) - psi(m + 1) = 1/(m+1) + ... + 1/n for whole numbers."""
    logits = [4.0, 3.0, 2.0, 1.0]
    total = 10
    expected = sum(x / total * sum(1 / i for i in range(int(x) + 1, total + 1)) for x in logits)
    assert dirichlet.aleatoric([logits])[0] == pytest.approx(expected, abs=1e-12)


def test_epistemic() -> None:
    assert dirichlet.epistemic([9.0] * 10) == pytest.approx(0.1)
    assert dirichlet.epistemic([9.0] * 5) == pytest.approx(0.1)
    for logits in ([0.0] * 10, [-3.0] * 10, [math.nan] * 10):
        assert dirichlet.epistemic(logits) == 1.0


def test_what_is_no_evidence_is_held_in_the_range_or_unknown() -> None:
    generator = torch.Generator().manual_seed(2)
    rows = (4 * torch.randn(2000, 10, generator=generator) - 2).tolist()
    for value in dirichlet.aleatoric(rows):
        assert 0 <= value <= math.log(10)
    assert all(math.isnan(value) for value in dirichlet.aleatoric(BAD))
    assert dirichlet.aleatoric([]) == []
    assert dirichlet.aleatoric([[3.0]]) == [0.0]


@names
def test_what_cannot_be_judged_goes_to_the_large_model_and_is_forgotten(policy: Policy) -> None:
    for ends in (policy.never, {}):
        spoilt, clean = (view(policy, given=dict(ends or {})) for _ in range(2))
        for logits in BAD:
            assert route_one(policy, spoilt, top_logits=logits, entropies=0.0) == reject(1)
        assert not any(math.isnan(number) for number in _numbers(spoilt.memory))
        # Momentum counts them as unsure, so some tokens on both are as before.
        tail = [route_one(policy, spoilt, top_logits=SURE, entropies=0.1) for _ in range(12)]
        assert tail == [route_one(policy, clean, top_logits=SURE, entropies=0.1) for _ in range(12)]


@names
def test_never_and_always(policy: Policy) -> None:
    assert policy.never is not None
    assert policy.always is not None
    never, always = view(policy, given=dict(policy.never)), view(policy, given=dict(policy.always))
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(300, 10, generator=generator).sort(descending=True).values * 5
    for logits in (*rows.tolist(), FLAT, SURE, [1e4] * 10, [1e4] + [0.0] * 9):
        for entropy in (0.0, 1.0):
            assert route_one(policy, never, top_logits=logits, entropies=entropy) == ACCEPT
            assert route_one(policy, always, top_logits=logits, entropies=entropy) == reject(1)


def test_immediate_asks_for_all_that_is_set() -> None:
    policy = Immediate()
    ((unsure,), (sure,)) = dirichlet.aleatoric([FLAT]), dirichlet.aleatoric([SURE])
    assert sure < 2.0 < unsure
    for given, entropy, verdict in (
        ({"threshold": 2.0}, 0.0, reject(1)),
        ({"threshold": unsure}, 0.0, reject(1)),
        ({"threshold": unsure + 1e-9}, 0.0, ACCEPT),
        ({"threshold": 2.0, "epistemic": 0.11}, 0.0, reject(1)),
        ({"threshold": 2.0, "epistemic": 0.112}, 0.0, ACCEPT),
        ({"threshold": 2.0, "entropy": 0.5}, 0.5, reject(1)),
        ({"threshold": 2.0, "entropy": 0.5}, 0.4, ACCEPT),
        ({"threshold": 2.0, "epistemic": 0.112, "entropy": 0.5}, 9.0, ACCEPT),
        ({"threshold": 2.0, "epistemic": 0.11, "entropy": 0.5}, 9.0, reject(1)),
    ):
        assert route_one(policy, view(policy, given=given), top_logits=FLAT, entropies=entropy) == verdict
        assert route_one(policy, view(policy, given=given), top_logits=SURE, entropies=9.0) == ACCEPT


def _writers(policy: SmallRule, values: list[float], monkeypatch: pytest.MonkeyPatch, entropy: float = 1.0) -> str:
    """Who writes, S or L, for a run of uncertainties."""
    monkeypatch.setattr(small_rule, "aleatoric", lambda rows: [row[0] for row in rows])
    request = view(policy)
    return "".join("SL"[route_one(policy, request, top_logits=[v], entropies=entropy).tier] for v in values)


LOW, HIGH, NAN = 1.0, 2.28, math.nan


@pytest.mark.parametrize(
    ("values", "writers"),
    [
        # 0.3, 0.51, 0.657, 0.7599: from the large model back at the fourth sure token.
        ([LOW] * 5, "LLLSS"),
        # Then 0.532, 0.372, 0.261: back to the large one at the third unsure token.
        ([LOW] * 4 + [HIGH] * 3 + [LOW], "LLLSSSLL"),
        ([HIGH] * 4, "LLLL"),
        # NaN is unsure, and the token itself goes to the large model.
        ([LOW] * 4 + [NAN, LOW, LOW], "LLLSLSS"),
        ([LOW] * 4 + [HIGH, HIGH, NAN, LOW], "LLLSSSLL"),
    ],
)
def test_momentum(values: list[float], writers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _writers(Momentum(), values, monkeypatch) == writers


def test_momentum_at_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the upper limit it stays on the large model, at the lower one it goes there."""
    policy = Momentum()
    monkeypatch.setattr(small_rule, "aleatoric", lambda rows: [row[0] for row in rows])
    request = view(policy, given={"momentum": 0.5, "lower": 0.25, "upper": 0.75})
    # 0.5, 0.75, 0.875, 0.4375, 0.71875, 0.359, 0.179
    written = [LOW, LOW, LOW, HIGH, LOW, HIGH, HIGH]
    tiers = [route_one(policy, request, top_logits=[v], entropies=1.0).tier for v in written]
    assert tiers == [1, 1, 0, 0, 0, 0, 1]
    with pytest.raises(InvalidArgument, match=r"upper limit, which is 0\.2") as caught:
        policy.check(view(policy, given={"lower": 0.3, "upper": 0.2}))
    assert caught.value.field == "routing.lower"


@pytest.mark.parametrize(
    ("values", "writers"),
    [
        ([LOW] * 3, "SSS"),
        ([HIGH, 2.26, LOW], "LSS"),  # a mean of 2.27
        ([HIGH, HIGH, 2.27, 2.26, HIGH], "LLLSL"),  # means 2.28, 2.28, 2.2767, 2.27; then anew
        ([LOW, HIGH, 2.27, 2.269, LOW], "SLLSS"),  # 2.28; 2.275 is not below; 2.273
        ([2.3, 2.3, 2.3, 2.25, 2.24], "LLLLS"),  # 2.3, 2.3, 2.3, 2.283, and 2.263, since the first are forgotten
        ([LOW, NAN, NAN, LOW], "SLLS"),
        ([LOW, HIGH, NAN, 2.26], "SLLS"),
    ],
)
def test_rolling(values: list[float], writers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _writers(Rolling(), values, monkeypatch) == writers


def test_rolling_lets_a_token_of_low_entropy_pass_on_the_small_model_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _writers(Rolling(), [LOW, HIGH, HIGH], monkeypatch, entropy=0.019) == "SSS"
    assert _writers(Rolling(), [HIGH, HIGH, HIGH], monkeypatch, entropy=0.019) == "LLL"
    assert _writers(Rolling(), [LOW, HIGH, NAN], monkeypatch, entropy=0.02) == "SLL"
    assert _writers(Rolling(), [LOW, NAN], monkeypatch, entropy=0.0) == "SL"


@names
def test_requests_do_not_share_a_past(policy: Policy) -> None:
    alone, first, second = (view(policy) for _ in range(3))
    rows = [SURE, FLAT, SURE, SURE, FLAT, SURE, SURE, SURE]
    apart = [route_one(policy, alone, top_logits=row, entropies=1.0) for row in rows]
    together = []
    for row, other in zip(rows, reversed(rows), strict=True):
        verdicts = policy.route(Proposals([first, second], [1, 1], top_logits=[row, other], entropies=[1.0, 1.0]))
        together.append(verdicts[0])
    assert together == apart


def _numbers(memory: dict[str, object]) -> list[float]:
    found: list[float] = []
    for value in memory.values():
        found += [own for own in (value if isinstance(value, tuple) else (value,)) if isinstance(own, float)]
    return found

"""A threshold that holds a share, wherever the scores lie."""

import random
from collections.abc import Callable

import pytest
from allroads.config import HomeSettings
from allroads.errors import StartupError
from allroads.policies.citer import Citer
from allroads.policies.entropy import Entropy
from allroads.policies.policy import Policy
from allroads.policies.r2r import R2R
from allroads.policies.speculative import Lossless
from allroads.slm.share_control import ShareControl


def _settings(**fields: object) -> HomeSettings:
    return HomeSettings.model_validate({"path": "x", **fields})


def _control(policy: Policy, start: float, **fields: object) -> ShareControl:
    control = ShareControl.of(_settings(**fields), policy, start)
    assert control is not None
    return control


SCORES: dict[str, Callable[[random.Random], float]] = {
    "piled up at 0": lambda rng: rng.random() ** 3,
    "even": lambda rng: rng.random(),
    "piled up at 1": lambda rng: 1 - rng.random() ** 3,
}


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("target", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("policy", [R2R(), Citer()])
def test_it_settles_within_two_points(policy: Policy, target: float, scores: str) -> None:
    rng = random.Random(1)
    control = _control(policy, 0.5, target_share=target)
    routed = []
    for _ in range(12_000):
        score = SCORES[scores](rng)
        is_routed = score >= control.threshold if isinstance(policy, R2R) else score < control.threshold
        control.observe(is_routed=is_routed)
        routed.append(is_routed)
    late = routed[-6_000:]
    assert abs(sum(late) / len(late) - target) < 0.02


def test_it_follows_scores_that_change() -> None:
    rng = random.Random(2)
    control = _control(R2R(), 0.5, target_share=0.1)
    for scores in ("piled up at 0", "piled up at 1", "piled up at 0"):
        routed = []
        for _ in range(12_000):
            routed.append(SCORES[scores](rng) >= control.threshold)
            control.observe(is_routed=routed[-1])
        assert abs(sum(routed[-4_000:]) / 4_000 - 0.1) < 0.02


def test_it_stays_in_its_bounds() -> None:
    control = _control(Entropy(), 0.45, target_share=0.5, threshold_bounds=(0.2, 0.6))
    for is_routed, end in ((True, 0.6), (False, 0.2)):
        for _ in range(5_000):
            control.observe(is_routed=is_routed)
            assert 0.2 <= control.threshold <= 0.6
        assert control.threshold == pytest.approx(end)


def test_without_a_target_nothing_moves() -> None:
    assert ShareControl.of(_settings(), R2R(), 0.5) is None


@pytest.mark.parametrize(
    ("policy", "start", "fields", "field"),
    [
        (Lossless(), None, {"target_share": 0.1}, "slm.target_share"),
        (R2R(), None, {"target_share": 0.1}, "slm.target_share"),
        (R2R(), 0.5, {"target_share": 0.1, "threshold_bounds": (0.5, 1.5)}, "slm.threshold_bounds"),
        (R2R(), 0.5, {"target_share": 0.1, "threshold_bounds": (0.5, 0.4)}, "slm.threshold_bounds"),
        (R2R(), 0.5, {"target_share": 0.1, "threshold_bounds": (0.1, float("nan"))}, "slm.threshold_bounds"),
    ],
)
def test_what_cannot_be_held_is_refused(
    policy: Policy, start: float | None, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(StartupError) as caught:
        ShareControl.of(_settings(**fields), policy, start)
    assert caught.value.field == field

"""Settings that a prediction may be shared by, and those that it may not."""

from dataclasses import replace

from allroads.throughput.nearness import are_near
from allroads.throughput.phases import Phases
from allroads.throughput.setting import Setting, StepCurve, Tier


def tier(name: str = "slm", base_s: float = 0.004, row_s: float = 1e-4, ends: float = 0.1) -> Tier:
    curve = StepCurve.affine(base_s, row_s)
    return Tier(name, curve, curve.scaled(1.2), Phases.geometric(ends))


SETTING = Setting(tier(), (tier("llm", 0.02),), tokens_per_cycle=10.0, hand_off_s=0.002, confirmed=0.3)


def test_near_is_near_and_far_is_far() -> None:
    assert are_near(SETTING, SETTING, 0.0, 64)
    for other, is_near in (
        (replace(SETTING, home=tier(base_s=0.00401)), True),
        (replace(SETTING, home=tier(base_s=0.0044)), False),
        (replace(SETTING, home=tier(ends=0.11)), False),
        (replace(SETTING, larger=(tier("other", 0.02),)), False),
        (replace(SETTING, tokens_per_cycle=10.1), True),
        (replace(SETTING, tokens_per_cycle=11.0), False),
        (replace(SETTING, hand_off_s=0.00201), True),
        (replace(SETTING, hand_off_s=0.003), False),
        (replace(SETTING, confirmed=0.5), False),
        (replace(SETTING, max_ahead=4), False),
        (replace(SETTING, request_s=0.1), False),
        (replace(SETTING, tokens_per_request=100.0), False),
        (replace(SETTING, larger=SETTING.larger * 2, shares=(0.5, 0.5)), False),
    ):
        assert are_near(SETTING, other, 0.03, 8) is is_near, other
        assert are_near(other, SETTING, 0.03, 8) is is_near, other


def test_what_is_beyond_the_load_does_not_count() -> None:
    bent = StepCurve((1, 8, 9), (0.0041, 0.0048, 0.1))
    straight = StepCurve((1, 8, 9), (0.0041, 0.0048, 0.0049))
    first, second = (
        replace(SETTING, home=Tier("slm", curve, curve, Phases.geometric(0.1))) for curve in (bent, straight)
    )
    assert are_near(first, second, 0.03, 8)
    assert not are_near(first, second, 0.03, 16)

"""A setting is found again from what tiers report, and is a sane guess before they do."""

import math

import numpy as np
import pytest
from allroads.throughput.profile import LiveProfile, TierSample

NAMES = ("slm", "llm")
SIZES = (1_500_000_000, 32_000_000_000)


def home_steps(rng: np.random.Generator, num_steps: int, num_rows: int) -> TierSample:
    overlap = rng.uniform(0.0, 1.0, num_steps)
    seconds = (4e-3 + 1e-4 * num_rows) * (1.0 + 0.3 * overlap) * rng.lognormal(0.0, 0.1, num_steps)
    return TierSample([float(num_rows)] * num_steps, [float(num_rows)] * num_steps, seconds.tolist(), overlap.tolist())


def busy(profile: LiveProfile, *, share: float, seconds: float, start_s: float = 0.0, visit_steps: int = 2) -> None:
    """A mesh of 8 requests works so long: reports every tenth of a second."""
    rng = np.random.default_rng(1)
    for tick in range(int(10 * seconds)):
        proposals = 160
        visits = int(rng.binomial(proposals, share))
        steps = home_steps(rng, 20, 8)
        home = TierSample(
            steps.rows,
            steps.positions,
            steps.seconds,
            steps.overlap,
            num_tokens=proposals - visits,
            num_rejected=visits,
        )
        large = TierSample(
            [2.0] * 4,
            [float(16)] * 4,
            rng.normal(0.03, 0.002, 4).tolist(),
            [1.0] * 4,
            num_tokens=visits * visit_steps,
            num_visits=visits,
            num_visit_steps=visits * visit_steps,
            num_confirmed=visits * 0.4,
            decision_s=visits * 2e-3,
            away_s=visits * 0.05,
            there_s=visits * 0.045,
            waited_s=visits * 0.01,
        )
        profile.observe([home, large], start_s + 0.1 * tick)


def test_guesses_before_anything_was_seen() -> None:
    profile = LiveProfile(NAMES, SIZES, max_ahead=8)
    setting = profile.setting()
    assert not profile.is_ready
    assert 1.0 / setting.home.stay.mean == pytest.approx(0.1)
    assert setting.larger[0].stay.mean == pytest.approx(1.0)
    assert 5.0 < setting.larger[0].alone.at(1) / setting.home.alone.at(1) < 32.0 / 1.5
    assert setting.home.co_running.at(1) > setting.home.alone.at(1) > 0.0
    assert (setting.max_ahead, setting.confirmed, setting.hand_off_s, setting.request_s) == (8, 0.0, 0.0, 0.0)
    assert math.isinf(setting.tokens_per_request)
    assert set(profile.confidence.values()) == {0.0}
    assert (profile.step_s, profile.waits_s) == ([None, None], [None])


def test_a_setting_is_found_again() -> None:
    profile = LiveProfile(NAMES, SIZES)
    busy(profile, share=0.2, seconds=20.0)
    setting = profile.setting()
    assert profile.is_ready
    assert 1.0 / setting.home.stay.mean == pytest.approx(0.2, rel=0.03)
    assert setting.larger[0].stay.mean == pytest.approx(2.0, rel=0.01)
    assert setting.tokens_per_cycle == pytest.approx(4.0 + 2.0, rel=0.03)
    assert setting.hand_off_s == pytest.approx(7e-3, rel=0.01)
    assert setting.confirmed == pytest.approx(0.4, rel=0.01)
    assert setting.home.alone.at(8) == pytest.approx(4.8e-3, rel=0.03)
    assert setting.home.slow_down == pytest.approx(1.3, rel=0.03)
    assert setting.larger[0].co_running.at(2) == pytest.approx(0.03, rel=0.03)
    assert profile.waits_s[0] == pytest.approx(0.01, rel=0.01)


def test_a_policy_that_decides_ahead_turns_nothing_down() -> None:
    profile = LiveProfile(NAMES, SIZES)
    # Runs of 9 tokens at home, then one of the large model: 9 steps and not 10.
    for tick in range(50):
        profile.observe([TierSample(num_tokens=900), TierSample(num_tokens=100, num_visits=100)], 0.1 * tick)
    assert profile.setting().home.stay.mean == pytest.approx(9.0, rel=0.01)
    assert profile.setting().tokens_per_cycle == pytest.approx(10.0, rel=0.01)


def test_a_change_is_followed() -> None:
    profile = LiveProfile(NAMES, SIZES)
    busy(profile, share=0.2, seconds=30.0)
    busy(profile, share=0.05, seconds=100.0, start_s=30.0, visit_steps=1)
    setting = profile.setting()
    assert 1.0 / setting.home.stay.mean == pytest.approx(0.05, rel=0.1)
    assert setting.larger[0].stay.mean == pytest.approx(1.0, rel=0.1)


def test_what_stands_still_forgets_nothing() -> None:
    profile = LiveProfile(NAMES, SIZES)
    busy(profile, share=0.2, seconds=10.0)
    before = profile.setting()
    for tick in range(1000):
        profile.observe([TierSample(), TierSample()], 100.0 + tick)
    assert profile.setting() == before
    assert profile.is_ready


def test_shares_of_several_larger_tiers() -> None:
    profile = LiveProfile(("slm", "mid", "llm"), (10, 100, 1000))
    assert profile.setting().shares == pytest.approx((0.5, 0.5))
    samples = [
        TierSample([4.0] * 100, [4.0] * 100, [1e-3] * 100, [0.0] * 100, num_tokens=400),
        TierSample([1.0] * 60, [2.0] * 60, [4e-3] * 60, [0.0] * 60, num_tokens=75, num_visits=75, num_visit_steps=75),
        TierSample([1.0] * 25, [2.0] * 25, [9e-3] * 25, [0.0] * 25, num_tokens=50, num_visits=25, num_visit_steps=50),
    ]
    profile.observe(samples, 0.0)
    setting = profile.setting()
    assert setting.shares == pytest.approx((0.75, 0.25), abs=0.01)
    assert [tier.name for tier in setting.larger] == ["mid", "llm"]
    assert setting.larger[1].stay.mean == pytest.approx(2.0, rel=0.05)
    assert profile.is_ready


def test_a_tier_that_is_hardly_visited_need_not_be_known() -> None:
    profile = LiveProfile(("slm", "mid", "llm"), (10, 100, 1000))
    home = TierSample([4.0] * 100, [4.0] * 100, [1e-3] * 100, [0.0] * 100, num_tokens=400)
    often = TierSample([1.0] * 60, [2.0] * 60, [4e-3] * 60, [0.0] * 60, 75, 75, 75)
    profile.observe([home, TierSample(), often], 0.0)
    assert profile.is_ready
    profile.observe([home, TierSample(num_visits=20), often], 0.1)
    assert not profile.is_ready


def test_requests_as_the_gateway_sees_them() -> None:
    profile = LiveProfile(NAMES, SIZES)
    for _ in range(100):
        profile.observe([TierSample([1.0] * 10, [1.0] * 10, [2e-3] * 10, [0.0] * 10, num_tokens=10)], 0.0)
        profile.observe_first_token(0.05, 0)
        profile.observe_end(64)
    setting = profile.setting()
    assert setting.tokens_per_request == pytest.approx(64.0)
    assert setting.request_s == pytest.approx(0.048, rel=0.02)
    for wrong in (math.nan, math.inf, -1.0):
        profile.observe_first_token(wrong, 10)
    assert profile.setting() == setting


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 1e300])
def test_nonsense_does_no_harm(wrong: float) -> None:
    profile, same = LiveProfile(NAMES, SIZES), LiveProfile(NAMES, SIZES)
    for each in (profile, same):
        busy(each, share=0.2, seconds=5.0)
    bad = TierSample([wrong], [wrong], [wrong], [wrong], *[wrong] * 8)
    profile.observe([bad, bad, bad], 5.0)
    profile.observe([], 5.0)
    profile.observe([TierSample([1.0, 2.0], [1.0], [], [])], 5.0)
    expected, setting = same.setting(), profile.setting()
    assert (setting.home.alone, setting.home.co_running) == (expected.home.alone, expected.home.co_running)
    assert setting.home.stay.mean == pytest.approx(expected.home.stay.mean, rel=0.01)
    assert setting.tokens_per_cycle == pytest.approx(expected.tokens_per_cycle, rel=0.01)
    assert setting.hand_off_s == pytest.approx(expected.hand_off_s, rel=0.01)


def test_a_mesh_that_hands_nothing_off_has_a_setting() -> None:
    profile = LiveProfile(NAMES, SIZES)
    profile.observe([TierSample([8.0] * 100, [8.0] * 100, [1e-3] * 100, [0.0] * 100, num_tokens=1e7)], 0.0)
    assert not profile.is_ready
    assert profile.setting().home.stay.mean == pytest.approx(1e4)


def test_a_mesh_needs_two_tiers_with_sizes() -> None:
    with pytest.raises(ValueError, match="two tiers"):
        LiveProfile(("slm",), (1,))
    with pytest.raises(ValueError, match="number of parameters"):
        LiveProfile(NAMES, (1,))

"""The simulation agrees with closed forms and with the published chain."""

from dataclasses import replace

import pytest
from allroads.throughput.phases import Phases
from allroads.throughput.published import published_throughput
from allroads.throughput.setting import Setting, StepCurve, Tier
from allroads.throughput.simulate import simulate
from allroads.throughput.tally import Simulated

P, L0, L1 = 0.35, 6.0e-3, 27.9e-3


def steady(seconds: float) -> tuple[StepCurve, StepCurve]:
    """Whatever the rows and the company."""
    return StepCurve.affine(seconds), StepCurve.affine(seconds)


PAPER = Setting.routed(P, steady(L0), steady(L1))


def counted(
    home: tuple[float, float], large: tuple[float, float], stay: int = 1, visit: int = 1, **fields: float
) -> Setting:
    """Stays and visits of fixed length; times are alone and co-running."""
    curves = [(StepCurve.affine(alone), StepCurve.affine(together)) for alone, together in (home, large)]
    return Setting(
        Tier("slm", *curves[0], Phases.fixed(stay)),
        (Tier("llm", *curves[1], Phases.fixed(visit)),),
        tokens_per_cycle=stay - 1.0 + visit,
        **fields,  # type: ignore[arg-type]
    )


def cycle_s(setting: Setting) -> float:
    """Time of a cycle of a lone request, where all cycles are alike."""
    return setting.tokens_per_cycle / simulate(setting, 1, [1], num_cycles=40).tokens_per_s


def agrees(found: Simulated, expected: float) -> bool:
    return abs(found.tokens_per_s - expected) < 2 * found.half_width < 0.1 * expected


def test_one_request_takes_its_steps_one_after_the_other() -> None:
    found = simulate(PAPER, 1, [1], num_cycles=3_000)
    assert agrees(found, 1 / (L0 + P * L1))
    assert found.batches == (1.0,)
    assert found.waits_s == (0.0,)
    assert sum(found.busy) == pytest.approx(1.0)


@pytest.mark.parametrize("cell", [(n, b) for n in (2, 3, 4) for b in range(1, n + 1)], ids=str)
def test_it_agrees_with_the_published_chain(cell: tuple[int, int]) -> None:
    num_requests, threshold = cell
    moves, commits = [[1 - P, P], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]
    expected = published_throughput(moves, commits, [L0, L1], [1, threshold], num_requests)
    assert agrees(simulate(PAPER, num_requests, [threshold], num_cycles=3_000), expected)


def test_a_threshold_beyond_what_could_come_is_lowered() -> None:
    assert simulate(PAPER, 3, [99], num_cycles=300).batches == (3.0,)


def test_a_saturated_large_tier_gives_what_it_can() -> None:
    by_row = StepCurve((1, 2), (0.01, 0.02))
    setting = Setting.routed(0.5, steady(1e-3), (by_row, by_row), visit_ends=0.5)
    found = simulate(setting, 32, [4], num_cycles=3_000)
    assert found.busy[1] == pytest.approx(1.0)
    # 100 rows a second, two for each visit.
    assert found.tokens_per_s == pytest.approx(setting.tokens_per_cycle * 50.0, rel=0.05)


def test_a_hand_off_and_a_request_are_pure_delays() -> None:
    plain = counted((0.002, 0.002), (0.01, 0.01), stay=3, visit=2)
    assert cycle_s(plain) == pytest.approx(3 * 0.002 + 2 * 0.01)
    assert cycle_s(replace(plain, hand_off_s=0.004)) == pytest.approx(3 * 0.002 + 2 * 0.01 + 0.004)
    # An answer of two tokens is half a cycle.
    answers = replace(plain, request_s=0.05, tokens_per_request=2.0)
    assert cycle_s(answers) == pytest.approx(3 * 0.002 + 2 * 0.01 + 2 * 0.05)


def test_answers_end_now_and_then() -> None:
    setting = replace(PAPER, request_s=0.2, tokens_per_request=20.0)
    assert agrees(simulate(setting, 1, [1], num_cycles=3_000), 1 / (L0 + P * L1 + 0.2 / 20))


@pytest.mark.parametrize(
    ("home", "large", "stay", "confirmed", "expected"),
    [
        # Home 4 beside half of the visit, the other half alone.
        ((2.0, 4.0), (4.0, 8.0), 1, 1.0, 4.0 + 0.5 * 4.0),
        # The visit 2 beside a quarter of the home's step, which then stands and is finished alone.
        ((4.0, 8.0), (1.0, 2.0), 1, 1.0, 2.0 + 0.75 * 4.0),
        # The same, but it falls, and one that counts follows it.
        ((4.0, 8.0), (1.0, 2.0), 1, 0.0, 2.0 + 0.75 * 4.0 + 4.0),
        # A visit that hides all but a part of a stay.
        ((2.0, 2.0), (5.0, 5.0), 4, 1.0, 4 * 2.0),
        # A stay that is hidden behind the visit.
        ((2.0, 2.0), (15.0, 15.0), 4, 1.0, 15.0),
    ],
)
def test_a_step_beside_another_for_a_part(
    home: tuple[float, float], large: tuple[float, float], stay: int, confirmed: float, expected: float
) -> None:
    assert cycle_s(counted(home, large, stay, max_ahead=stay, confirmed=confirmed)) == pytest.approx(expected)


def test_steps_ahead_end_at_their_limit() -> None:
    ahead = counted((1.0, 1.0), (10.0, 10.0), stay=8, max_ahead=3, confirmed=1.0)
    assert cycle_s(ahead) == pytest.approx(10.0 + (8 - 3) * 1.0)
    assert cycle_s(replace(ahead, confirmed=0.0)) == pytest.approx(10.0 + 8 * 1.0)
    # 8 steps that count and, while the visit lasts, 3 that do not.
    found = simulate(replace(ahead, confirmed=0.0), 1, [1], num_cycles=40)
    assert found.busy[0] == pytest.approx(11 / 18)


def test_work_ahead_that_stays_hides_the_large_tier() -> None:
    setting = Setting.routed(0.02, steady(1e-3), steady(5e-3), max_ahead=1_000, confirmed=1.0)
    found = simulate(setting, 1, [1], num_cycles=2_000)
    alone = setting.tokens_per_cycle / setting.home.stay.mean / 1e-3
    assert 0.95 * alone < found.tokens_per_s < alone * 1.02


def test_several_larger_tiers_are_visited_by_their_shares() -> None:
    home, large = (Tier("any", *steady(seconds), Phases.fixed(2)) for seconds in (0.001, 0.01))
    larger = replace(large, alone=StepCurve.affine(0.05), co_running=StepCurve.affine(0.05))
    setting = Setting(home, (large, larger), tokens_per_cycle=3.0, shares=(0.75, 0.25))
    found = simulate(setting, 1, [1, 1], num_cycles=3_000)
    assert agrees(found, 3.0 / (0.002 + 0.75 * 0.02 + 0.25 * 0.1))
    assert found.busy[2] / found.busy[1] == pytest.approx(0.25 * 0.1 / (0.75 * 0.02), rel=0.1)


def test_gaps_between_tokens() -> None:
    found = simulate(counted((2.0, 2.0), (10.0, 10.0), stay=3, hand_off_s=1.0), 1, [1], num_cycles=300)
    assert found.gaps_s == pytest.approx((2.0, 13.0, 13.0))


def test_what_was_made_ahead_comes_at_once() -> None:
    # Two tokens with the visit's own, then a step that ends the stay and the next visit.
    setting = counted((2.0, 2.0), (10.0, 10.0), stay=3, max_ahead=2, confirmed=1.0)
    found = simulate(setting, 1, [1], num_cycles=300)
    assert found.gaps_s == pytest.approx((0.0, 12.0, 12.0))
    assert found.tokens_per_s == pytest.approx(3 / 12.0)


def test_the_flush_bounds_the_wait_of_a_lone_request() -> None:
    setting = Setting.routed(0.005, steady(1e-3), steady(5e-3))
    patient = simulate(setting, 2, [2], num_cycles=500)
    assert patient.waits_s[0] > 0.05
    flushed = simulate(setting, 2, [2], num_cycles=500, flush_s=0.02)
    # The tier may be in the other's step when the time is over.
    assert 0.02 <= flushed.hand_off_waits_s[-1] <= 0.02 + 5e-3 + 1e-9
    assert flushed.tokens_per_s > patient.tokens_per_s


def test_thresholds_that_deadlock_need_a_flush() -> None:
    tier = Tier("any", *steady(0.01), Phases.fixed(1))
    setting = Setting(tier, (tier, tier), tokens_per_cycle=1.0, shares=(0.5, 0.5))
    with pytest.raises(ValueError, match="for ever"):
        simulate(setting, 4, [3, 3], num_cycles=100)
    assert simulate(setting, 4, [3, 3], num_cycles=100, flush_s=0.1).tokens_per_s > 0.0


def test_the_seed_is_all_chance() -> None:
    one, same, other = (simulate(PAPER, 4, [2], num_cycles=500, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one.tokens_per_s != other.tokens_per_s


@pytest.mark.parametrize(
    ("num_requests", "thresholds", "num_cycles", "flush_s"),
    [(0, [1], 10, None), (1, [1], 0, None), (1, [], 10, None), (1, [1, 1], 10, None), (1, [0], 10, None),
     (1, [1], 10, -1.0), (1, [1], 10, float("nan"))],
)  # fmt: skip
def test_refusals(num_requests: int, thresholds: list[int], num_cycles: int, flush_s: float | None) -> None:
    with pytest.raises(ValueError, match=r"must|needed"):
        simulate(PAPER, num_requests, thresholds, num_cycles=num_cycles, flush_s=flush_s)

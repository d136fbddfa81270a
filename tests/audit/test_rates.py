"""Intervals hold the truth as often as they say, and comparisons cry wolf no more often; fixed seeds throughout."""

import math
from random import Random

import pytest
from allroads.audit.compare import Verdict, compare_sums
from allroads.audit.rates import Rate, RatioSums, _t_975, adjusted, differ
from allroads.audit.tally import CellSums
from allroads.errors import InvalidArgument
from allroads.gateway.wilson import wilson_interval


def sample(chance: Random, num_requests: int, share: float, *, spread: float = 1.0, tokens: int = 30) -> RatioSums:
    """Requests of different lengths whose shares lie around `share`, evenly to either side."""
    sums = RatioSums()
    for _ in range(num_requests):
        own = share + spread * share * chance.choice((-0.8, 0.8))
        length = chance.randint(tokens // 2, 2 * tokens)
        sums.add(sum(chance.random() < own for _ in range(length)), length)
    return sums


def test_a_share_is_of_all_decisions() -> None:
    sums = RatioSums()
    sums.add(3, 10)
    sums.add(0, 30)
    sums.add(0, 0)
    rate = Rate.of(sums)
    assert (rate.hits, rate.trials, rate.num_requests, rate.share) == (3, 40, 2, 0.075)


def test_the_linearised_variance_by_hand() -> None:
    sums = RatioSums()
    counts = [(9, 10), (1, 20), (6, 15)]
    for hits, trials in counts:
        sums.add(hits, trials)
    share = 16 / 45
    by_hand = 3 / 2 * sum((hits - share * trials) ** 2 for hits, trials in counts) / 45**2
    assert sums.variance == pytest.approx(by_hand)


def test_independent_decisions_of_many_requests_have_wilson_s_interval() -> None:
    # 3 of 10 in every request: less spread than chance gives, so nothing is gained or lost by requests.
    sums = RatioSums()
    for _ in range(100_000):
        sums.add(3, 10)
    rate = Rate.of(sums)
    assert (rate.low, rate.high) == pytest.approx(wilson_interval(300_000, 1_000_000), rel=1e-4)


def test_requests_that_differ_are_worth_fewer_decisions() -> None:
    alike, apart = RatioSums(), RatioSums()
    for request in range(100):
        alike.add(5, 50)
        apart.add(50 if request < 10 else 0, 50)
    one, other = Rate.of(alike), Rate.of(apart)
    assert one.share == other.share == 0.1
    assert other.high - other.low > 4 * (one.high - one.low)


@pytest.mark.parametrize("hits", [0, 50])
def test_nothing_or_everything_is_no_certainty(hits: int) -> None:
    sums = RatioSums()
    for _ in range(10):
        sums.add(hits, 50)
    rate = Rate.of(sums)
    assert rate.share == hits / 50
    assert rate.low <= rate.share <= rate.high
    assert 0.004 < rate.high - rate.low < 0.03


def test_one_answer_tells_nothing_of_others() -> None:
    sums = RatioSums()
    sums.add(5, 50)
    assert (Rate.of(sums).low, Rate.of(sums).high) == (0.0, 1.0)
    assert Rate.of(RatioSums()) == Rate(0, 0, 0, None, 0.0, 1.0)


@pytest.mark.parametrize(("num_requests", "spread"), [(15, 1.0), (60, 1.0), (60, 0.0), (200, 1.0)])
def test_intervals_hold_the_truth_in_about_95_of_100_samples(num_requests: int, spread: float) -> None:
    chance = Random(7)
    held = 0
    for _ in range(600):
        rate = Rate.of(sample(chance, num_requests, 0.1, spread=spread))
        held += rate.low <= 0.1 <= rate.high
    assert 0.925 < held / 600 < 0.985


def test_intervals_that_forgot_the_requests_would_not() -> None:
    """That the test above can fail."""
    chance = Random(7)
    held = 0
    for _ in range(600):
        sums = sample(chance, 60, 0.1)
        low, high = wilson_interval(sums.hits, sums.trials)
        held += low <= 0.1 <= high
    assert held / 600 < 0.85


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)]
)
def test_student_s_quantiles_are_those_of_tables(freedom: int, quantile: float) -> None:
    assert _t_975(freedom) == pytest.approx(quantile, abs=2e-3)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_two_of_a_kind_are_told_apart_in_about_5_of_100_comparisons(spread: float) -> None:
    chance = Random(11)
    found = 0
    for _ in range(1000):
        difference = differ(sample(chance, 50, 0.1, spread=spread), sample(chance, 50, 0.1, spread=spread), 0.01)
        assert difference is not None
        found += difference.p_value < 0.05
        assert (difference.p_value < 0.05) is not (difference.low <= 0 <= difference.high)
    assert 0.03 < found / 1000 < 0.07


def test_a_difference_is_seen_with_the_promised_power() -> None:
    """With as many requests as are said to be needed, in about 80 of 100 comparisons."""
    chance = Random(13)
    pilot = differ(sample(chance, 400, 0.10), sample(chance, 400, 0.14), 0.04)
    assert pilot is not None
    found = 0
    for _ in range(300):
        difference = differ(
            sample(chance, pilot.needed_requests, 0.10), sample(chance, pilot.needed_requests, 0.14), 0.04
        )
        assert difference is not None
        found += difference.p_value < 0.05 and difference.difference > 0
    assert 0.7 < found / 300 < 0.9


def test_effect_size_by_hand() -> None:
    a, b = RatioSums(), RatioSums()
    for _ in range(40):
        a.add(10, 100)
        b.add(30, 100)
    difference = differ(a, b, 0.01)
    assert difference is not None
    assert difference.difference == pytest.approx(0.2)
    assert difference.effect == pytest.approx(2 * math.asin(math.sqrt(0.3)) - 2 * math.asin(math.sqrt(0.1)))
    assert difference.low < 0.2 < difference.high


def test_holm_by_hand() -> None:
    assert adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjusted([0.9, 0.8]) == [1.0, 1.0]
    assert adjusted([]) == []


def sums_of(routed: RatioSums, missed: RatioSums | None = None) -> CellSums:
    return CellSums(routed=routed, missed=missed or RatioSums())


def verdicts(a: CellSums, b: CellSums, matters: float) -> dict[str, Verdict]:
    return {one.measure: one.verdict for one in compare_sums(a, b, matters).measures}


def test_what_comparisons_say() -> None:
    chance = Random(17)
    many = sums_of(sample(chance, 400, 0.10)), sums_of(sample(chance, 400, 0.16))
    assert verdicts(*many, 0.01)["routed"] == "differ"
    alike = sums_of(sample(chance, 2000, 0.10)), sums_of(sample(chance, 2000, 0.10))
    assert verdicts(*alike, 0.02)["routed"] == "no difference that matters"
    assert verdicts(*alike, 0.0001)["routed"] == "not enough data"
    few = sums_of(sample(chance, 29, 0.05)), sums_of(sample(chance, 29, 0.5))
    assert verdicts(*few, 0.01)["routed"] == "not enough data"
    # Nothing is known of what was missed.
    assert verdicts(*many, 0.01)["missed"] == "not enough data"


def test_measures_that_are_read_together_are_tested_together() -> None:
    """Under no difference some measure of a comparison is called different in at most about 5 of 100."""
    chance = Random(19)
    found = 0
    for _ in range(400):
        a, b = (CellSums(*(sample(chance, 40, 0.1, tokens=15) for _ in range(6))) for _ in range(2))
        found += "differ" in verdicts(a, b, 0.01).values()
    assert found / 400 < 0.075


def test_a_difference_that_matters_must_be_a_share() -> None:
    for matters in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(InvalidArgument, match="--matters must be above 0 and below 1"):
            differ(RatioSums(), RatioSums(), matters)

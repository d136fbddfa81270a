from dataclasses import replace

import pytest
from allroads.throughput.chain import Chain, predict
from allroads.throughput.setting import Setting
from allroads.throughput.solve import Solver, capacity

from tests.throughput.test_chain import constant, contended


@pytest.mark.parametrize(
    ("setting", "num_requests"),
    [
        (constant(0.35), 4),
        (constant(0.35), 64),
        (contended(0.06), 8),
        (contended(0.06, hand_off_s=0.002, max_ahead=8, confirmed=0.6), 32),
        (contended(0.3), 256),
    ],
)
def test_the_best_is_that_of_a_sweep(setting: Setting, num_requests: int) -> None:
    solver = Solver()
    best = solver.best(setting, num_requests)
    values = sorted({*range(1, min(num_requests, 24) + 1), *range(1, num_requests + 1, 8)})
    swept = Chain(setting, num_requests).predict([[value] for value in values])
    most = max(one.tokens_per_s for one in swept)
    assert predict(setting, num_requests, best.thresholds).tokens_per_s > 0.98 * most


def test_what_was_asked_before_makes_little_difference() -> None:
    asked = Solver()
    for share in (0.02, 0.3, 0.1, 0.06):
        asked.best(contended(share), 16)
    fresh = Solver().best(contended(0.06), 16)
    again = asked.best(contended(0.06), 16)
    settled = predict(contended(0.06), 16, again.thresholds).tokens_per_s
    assert settled > 0.99 * predict(contended(0.06), 16, fresh.thresholds).tokens_per_s


def test_the_published_gains() -> None:
    # About 1.11 at p = .35 and few requests, at most 1.02 for p up to .15 without contention.
    for num_requests, share, least, most in ((2, 0.35, 1.08, 1.14), (4, 0.35, 1.07, 1.14), (8, 0.1, 1.0, 1.02)):
        at_once = predict(constant(share), num_requests, [1]).tokens_per_s
        assert least <= Solver().best(constant(share), num_requests).tokens_per_s / at_once <= most


def test_several_tiers_are_never_made_to_wait_for_each_other() -> None:
    setting = contended(0.2)
    middle = replace(setting.larger[0], name="mlm")
    both = replace(setting, larger=(middle, setting.larger[0]), shares=(0.5, 0.5))
    for num_requests in (1, 2, 6):
        best = Solver().best(both, num_requests)
        assert sum(value - 1 for value in best.thresholds) < num_requests
        assert best.tokens_per_s >= 0.98 * predict(both, num_requests, [1, 1]).tokens_per_s


def test_capacity_keeps_the_promise_and_no_less() -> None:
    setting, solver = contended(0.1), Solver()
    most = capacity(setting, min_tokens_per_s=60.0, max_requests=256)
    assert solver.best(setting, most).tokens_per_s_each >= 60.0
    assert solver.best(setting, most + 1).tokens_per_s_each < 60.5
    assert capacity(setting, min_tokens_per_s=1e6, max_requests=256) == 0
    assert capacity(setting, min_tokens_per_s=0.001, max_requests=7) == 7
    for wrong in (0.0, float("nan")):
        with pytest.raises(ValueError, match="min_tokens_per_s"):
            capacity(setting, min_tokens_per_s=wrong, max_requests=4)

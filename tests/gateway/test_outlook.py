"""What those who admit are told: by predictions for some numbers of requests, of all."""

import math

import pytest
from allroads.gateway.admission.outlook import OUTLOOK_SIZES, PredictedService
from allroads.throughput.setting import Setting, StepCurve
from hypothesis import given
from hypothesis import strategies as st

FLAT = StepCurve((1,), (0.01,))


def outlook(tokens_per_s: dict[int, float], num_requests: int = 4, **fields: float) -> PredictedService:
    predicted = PredictedService()
    setting = Setting.routed(0.1, (FLAT, FLAT), (FLAT, FLAT), **fields)
    predicted.learn(tokens_per_s, num_requests, setting)
    return predicted


def test_nothing_is_known_at_first_nor_after_a_failure() -> None:
    told = outlook({1: 100.0}, tokens_per_request=10.0)
    told.forget()
    for predicted in (PredictedService(), told):
        assert predicted.tokens_per_s(1) is None
        assert predicted.capacity(1.0) is None
        assert predicted.first_token_s(0, 1) is None
        assert predicted.first_token_s(3, 1) is None
        assert predicted.ends_per_s() is None


def test_throughput_is_straight_between_what_is_known() -> None:
    predicted = outlook({4: 250.0, 1: 100.0, 2: 150.0})
    assert [predicted.tokens_per_s(count) for count in (1, 2, 3, 4, 9)] == [100.0, 150.0, 200.0, 250.0, 250.0]


@pytest.mark.parametrize(
    ("promise", "capacity"), [(101.0, 0), (100.0, 1), (75.0, 2), (62.51, 3), (62.5, None), (65.0, 3), (62.0, None)]
)
def test_capacity(promise: float, capacity: int | None) -> None:
    assert outlook({1: 100.0, 2: 150.0, 4: 250.0}).capacity(promise) == capacity


@given(st.floats(1.0, 1e4), st.floats(0.0, 1.0), st.floats(0.5, 1e4))
def test_capacity_is_the_most_of_whom_each_gets_what_is_promised(first: float, power: float, promise: float) -> None:
    predicted = outlook({size: first * size**power for size in OUTLOOK_SIZES})
    capacity = predicted.capacity(promise)
    each = [math.inf, *(total / count for count in range(1, 257) if (total := predicted.tokens_per_s(count)))]
    if capacity is None:
        assert each[256] >= promise * (1 - 1e-9)
    else:
        assert each[capacity] >= promise * (1 - 1e-6)
        assert each[capacity + 1] < promise * (1 + 1e-6)


def test_the_first_token_comes_after_those_in_line_and_the_prompt() -> None:
    predicted = outlook({1: 100.0, 4: 200.0}, tokens_per_request=50.0, request_s=0.3)
    assert predicted.ends_per_s() == pytest.approx(4.0)
    assert predicted.first_token_s(0, 4) == pytest.approx(0.3 + 4 / 200.0)
    assert predicted.first_token_s(8, 4) == pytest.approx(2.0 + 0.3 + 4 / 200.0)
    assert predicted.first_token_s(0, 0) == pytest.approx(0.3 + 1 / 100.0)


def test_how_many_end_is_unknown_while_the_length_of_answers_is() -> None:
    predicted = outlook({1: 100.0})
    assert predicted.ends_per_s() is None
    assert predicted.first_token_s(1, 1) is None
    assert predicted.first_token_s(0, 1) == pytest.approx(0.01)

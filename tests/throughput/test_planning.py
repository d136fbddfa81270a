"""Capacity, replicas and latency: by hand where one request runs at once, by what must hold elsewhere."""

from itertools import accumulate

import pytest
from allroads.errors import InvalidArgument
from allroads.throughput.chain import predict
from allroads.throughput.changes import changed
from allroads.throughput.erlang import queue_wait_s
from allroads.throughput.plan_plot import draw_plan
from allroads.throughput.planning import Load, Plan, make_plan
from allroads.throughput.setting import Setting, StepCurve
from allroads.throughput.traffic import Traffic

HOME, LARGE, SHARE = 0.006, 0.0279, 0.35
"""The published pair of facts: seconds of a step, and the share that is handed off."""


def pair(**fields: float) -> Setting:
    home, large = (StepCurve.affine(base_s, 0.0001) for base_s in (HOME - 0.0001, LARGE - 0.0001))
    return Setting.routed(SHARE, (home, home.scaled(1.2)), (large, large.scaled(1.2)), **fields)


def alone(request_s: float = 0.1, tokens: float = 500.0, hand_off_s: float = 0.001) -> Plan:
    setting = pair(request_s=request_s, tokens_per_request=tokens, hand_off_s=hand_off_s)
    return make_plan(setting, Traffic(2.0, max_requests=1, gpus_per_replica=2))


def load_of(plan: Plan) -> Load:
    assert plan.load is not None
    return plan.load


def test_one_request_at_once_by_hand() -> None:
    found = alone()
    answer_s = 500.0 * (HOME + SHARE * (LARGE + 0.001)) + 0.1
    assert found.capacity.tokens_per_s == pytest.approx(500.0 / answer_s)
    assert found.capacity.gain == pytest.approx(0.0)
    assert found.capacity.first_token_s == pytest.approx(0.1 + HOME + SHARE * (LARGE + 0.001))
    assert found.requests_per_s == pytest.approx(1.0 / answer_s)
    load, each = load_of(found), 2.0 / 21
    # 2 requests/s of 8.16 s each are 16.3 requests at once; at 80 % that is 21 replicas of 2 GPUs.
    assert (load.num_replicas, load.num_gpus) == (21, 42)
    assert load.utilisation == pytest.approx(each * answer_s)
    assert load.num_running == pytest.approx(each * answer_s)
    assert load.answer_s == pytest.approx(answer_s)
    assert load.queue_wait_s == pytest.approx(queue_wait_s(each, 1, answer_s))
    assert load.first_token_s == pytest.approx(load.queue_wait_s + found.capacity.first_token_s)


def test_points_double_and_name_the_capacity() -> None:
    found = make_plan(pair(), Traffic(min_tokens_per_s=45.0, max_requests=10))
    numbers = [point.num_requests for point in found.points]
    assert numbers == sorted({1, 2, 4, 8, 10, found.capacity.num_requests})
    assert found.capacity in found.points
    assert (found.requests_per_s, found.load) == (None, None)
    for point in found.points:
        at_once = predict(pair(), point.num_requests, (1,)).tokens_per_s
        assert point.tokens_per_s == pytest.approx(at_once * (1.0 + point.gain))
        assert point.gain >= -1e-9


def test_the_capacity_is_the_last_number_that_keeps_the_promise() -> None:
    found = make_plan(pair(), Traffic(min_tokens_per_s=45.0, max_requests=16)).capacity
    assert 1 < found.num_requests < 16
    assert found.tokens_per_s_each >= 45.0
    further = make_plan(pair(), Traffic(max_requests=found.num_requests + 1)).capacity
    assert further.tokens_per_s_each < 45.0


def test_memory_is_a_limit_too() -> None:
    assert make_plan(pair(), Traffic(min_tokens_per_s=1.0, max_requests=3)).capacity.num_requests == 3


def test_a_promised_first_token_makes_the_capacity_smaller() -> None:
    free = make_plan(pair(), Traffic(max_requests=8))
    promised_s = 0.5 * (free.points[0].first_token_s + free.capacity.first_token_s)
    found = make_plan(pair(), Traffic(max_first_token_s=promised_s, max_requests=8)).capacity
    assert 1 <= found.num_requests < 8
    assert found.first_token_s <= promised_s


def test_a_promised_first_token_takes_replicas_until_nobody_waits_longer() -> None:
    setting = pair(tokens_per_request=500.0)
    lax = load_of(make_plan(setting, Traffic(2.0, max_requests=1)))
    strict = load_of(make_plan(setting, Traffic(2.0, max_first_token_s=1.0, max_requests=1)))
    assert lax.first_token_s > 1.0
    assert strict.first_token_s <= 1.0
    assert strict.num_replicas > lax.num_replicas
    wait_s = queue_wait_s(2.0 / (strict.num_replicas - 1), 1, strict.answer_s)
    assert wait_s + strict.first_token_s - strict.queue_wait_s > 1.0


def test_what_runs_at_once_ends_as_fast_as_it_comes() -> None:
    setting = pair(tokens_per_request=500.0)
    load = load_of(make_plan(setting, Traffic(1.7, max_requests=8, utilisation=0.9)))
    each, below = 1.7 / load.num_replicas, int(load.num_running)
    assert load.num_running == pytest.approx(each * load.answer_s)
    low, high = (
        make_plan(setting, Traffic(max_requests=number)).capacity.tokens_per_s for number in (below, below + 1)
    )
    assert low <= 500.0 * each <= high


def test_the_load_is_near_that_of_a_queue_whose_places_serve_faster_when_few_are_taken() -> None:
    # With answers of exponential length the number of requests is a birth and death process, which is solved exactly.
    setting, places = pair(tokens_per_request=500.0), 2
    points = make_plan(setting, Traffic(max_requests=places)).points
    ends = [point.tokens_per_s / 500.0 for point in points]
    rate = 0.8 * ends[-1]
    chances = list(accumulate(range(1, 500), lambda chance, n: chance * rate / ends[min(n, places) - 1], initial=1.0))
    total = sum(chances)
    running = sum(chance * min(number, places) for number, chance in enumerate(chances)) / total
    waiting = sum(chance * max(number - places, 0) for number, chance in enumerate(chances)) / total
    load = load_of(make_plan(setting, Traffic(rate, max_requests=places, utilisation=0.81)))
    assert load.num_replicas == 1
    assert load.answer_s == pytest.approx(running / rate, rel=0.05)
    assert 1.0 < load.queue_wait_s / (waiting / rate) < 1.1


def test_a_device_that_is_twice_as_fast_needs_half_of_it() -> None:
    setting = pair(tokens_per_request=500.0)
    base, fast = (
        make_plan(changed(setting, [("device-speed", speed)]), Traffic(100.0, max_requests=8)) for speed in (1.0, 2.0)
    )
    assert fast.capacity.tokens_per_s == pytest.approx(2.0 * base.capacity.tokens_per_s, rel=1e-3)
    assert abs(load_of(base).num_replicas - 2 * load_of(fast).num_replicas) <= 1


def test_promises_that_cannot_be_kept_say_what_could_be() -> None:
    with pytest.raises(InvalidArgument, match=r"one request alone gets 63\.4") as caught:
        make_plan(pair(), Traffic(min_tokens_per_s=100.0, max_requests=4))
    assert caught.value.field == "min_tokens_per_s"
    with pytest.raises(InvalidArgument, match=r"one request alone has its first token after 0\.01577 s") as caught:
        make_plan(pair(), Traffic(max_first_token_s=0.01, max_requests=4))
    assert caught.value.field == "max_first_token_s"


def test_a_rate_needs_the_length_of_answers() -> None:
    with pytest.raises(InvalidArgument, match="answer_tokens"):
        make_plan(pair(), Traffic(1.0))


def test_a_rate_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="replicas"):
        make_plan(pair(tokens_per_request=500.0), Traffic(1e9, max_requests=4))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate_per_s", 0.0),
        ("rate_per_s", float("nan")),
        ("min_tokens_per_s", -1.0),
        ("max_first_token_s", float("inf")),
        ("utilisation", 1.0),
        ("max_requests", 0),
        ("gpus_per_replica", 0),
    ],
)
def test_wrong_traffic_is_refused_by_its_field(name: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=name) as caught:
        Traffic(**{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name


def test_the_picture_is_the_same_for_the_same_plans() -> None:
    plans = [("as it is", alone()), ("what if share=0.1", alone(request_s=0.0))]
    picture = draw_plan(plans, 20.0)
    assert picture == draw_plan(plans, 20.0)
    assert "what if share=0.1" in picture

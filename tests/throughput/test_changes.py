"""What another share, pair or device makes of a setting."""

from dataclasses import replace

import pytest
from allroads.errors import InvalidArgument
from allroads.throughput.changes import changed, keys_of
from allroads.throughput.setting import Setting, StepCurve

HOME = StepCurve((1, 4), (0.006, 0.008))
LARGE = StepCurve((1, 2, 8), (0.028, 0.030, 0.040))
SETTING = Setting.routed(
    0.35, (HOME, HOME.scaled(1.5)), (LARGE, LARGE.scaled(1.2)), visit_ends=0.5, hand_off_s=0.002, request_s=0.1
)


def test_another_share_and_other_visits_are_those_of_a_setting_made_with_them() -> None:
    after = changed(SETTING, [("share", 0.1), ("visit-ends", 0.25)])
    made = Setting.routed(
        0.1, (HOME, HOME.scaled(1.5)), (LARGE, LARGE.scaled(1.2)), visit_ends=0.25, hand_off_s=0.002, request_s=0.1
    )
    assert after.tokens_per_cycle == pytest.approx(made.tokens_per_cycle)
    assert replace(after, tokens_per_cycle=1.0) == replace(made, tokens_per_cycle=1.0)


def test_another_model_has_the_shape_of_the_curve_and_its_own_first_step() -> None:
    after = changed(SETTING, [("llm-ms", 14.0)]).larger[0]
    assert after.alone.seconds == pytest.approx((0.014, 0.015, 0.020))
    assert after.co_running.at(1) == pytest.approx(0.014 * 1.2)
    assert changed(SETTING, [("llm-ms", 14.0)]).home == SETTING.home


def test_rows_that_cost_something_else_make_a_line_with_the_same_slow_down() -> None:
    after = changed(SETTING, [("slm-row-ms", 0.5)]).home
    assert [after.alone.at(rows) for rows in (1, 3, 101)] == pytest.approx([0.006, 0.007, 0.056])
    assert after.co_running.at(101) == pytest.approx(0.056 * 1.5)


def test_a_faster_device_shortens_all_steps_and_nothing_else() -> None:
    after = changed(SETTING, [("device-speed", 2.0)])
    assert after.home.alone.seconds == pytest.approx((0.003, 0.004))
    assert after.larger[0].co_running.at(8) == pytest.approx(0.024)
    assert (after.hand_off_s, after.request_s) == (0.002, 0.1)


def test_tiers_that_no_longer_share_a_device() -> None:
    after = changed(SETTING, [("slow-down", 1.0)])
    assert after.home.co_running == after.home.alone
    assert after.larger[0].slow_down == 1.0


def test_the_other_fields() -> None:
    given = [("confirmed", 0.3), ("max-ahead", 4.0), ("hand-off-ms", 5.0), ("answer-tokens", 64.0), ("request-ms", 9.0)]
    after = changed(SETTING, given)
    assert (after.confirmed, after.max_ahead, after.hand_off_s) == (0.3, 4, 0.005)
    assert (after.tokens_per_request, after.request_s) == (64.0, 0.009)


def test_every_key_that_is_told_can_be_changed() -> None:
    assert {"slm-ms", "llm-row-ms", "share", "device-speed"} <= set(keys_of(SETTING))
    for key in keys_of(SETTING):
        changed(SETTING, [(key, 1.0)])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("share", 0.0),
        ("share", 1.1),
        ("share", float("nan")),
        ("visit-ends", -0.5),
        ("confirmed", 2.0),
        ("max-ahead", 1.5),
        ("llm-ms", 0.0),
        ("slm-ms", float("inf")),
        ("slm-row-ms", -0.1),
        ("device-speed", 0.0),
        ("slow-down", -1.0),
        ("answer-tokens", 0.5),
        ("request-ms", float("inf")),
    ],
)
def test_what_is_out_of_range_is_refused_by_its_key(key: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=f"{key} must be") as caught:
        changed(SETTING, [(key, value)])
    assert caught.value.field == key


def test_an_unknown_key_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidArgument, match=r"nothing is called 'mlm-ms'.*slm-ms.*llm-row-ms.*share"):
        changed(SETTING, [("mlm-ms", 1.0)])


def test_changes_that_leave_no_step_time_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="device-speed"):
        changed(SETTING, [("device-speed", 1e-4)] * 90)

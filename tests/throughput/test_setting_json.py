"""A setting goes through JSON unharmed, and what is no setting is refused by the name of its field."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from allroads.errors import InvalidArgument
from allroads.throughput.phases import Phases
from allroads.throughput.setting import Setting, StepCurve, Tier
from allroads.throughput.setting_json import setting_from_json, setting_to_json
from hypothesis import given
from hypothesis import strategies as st

times = st.floats(1e-6, 1e3)
counts = st.lists(st.floats(0.0, 9.0), max_size=4).map(lambda counts: Phases.of_counts([*counts, 1.0]))
shares = st.floats(0.01, 1.0)


@st.composite
def curves(draw: st.DrawFn) -> StepCurve:
    sizes = sorted({1, *draw(st.lists(st.integers(1, 512), max_size=4))})
    return StepCurve(tuple(sizes), tuple(draw(times) for _ in sizes))


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    stays = st.one_of(counts, shares.map(Phases.geometric))
    tiers = [Tier(name, draw(curves()), draw(curves()), draw(stays)) for name in ("slm", "mlm", "llm")]
    share = draw(st.floats(0.0, 1.0))
    return Setting(
        tiers[0],
        tuple(tiers[1:]),
        tokens_per_cycle=draw(times),
        shares=(share, 1.0 - share),
        hand_off_s=draw(times),
        max_ahead=draw(st.integers(0, 64)),
        confirmed=draw(st.floats(0.0, 1.0)),
        tokens_per_request=draw(st.one_of(times, st.just(float("inf")))),
        request_s=draw(times),
    )


@given(settings())
def test_a_setting_comes_back_as_it_was(setting: Setting) -> None:
    text = json.dumps(setting_to_json(setting), allow_nan=False)
    assert setting_from_json(json.loads(text)) == setting


@pytest.fixture
def document() -> dict[str, Any]:
    curve = StepCurve((1, 8), (0.01, 0.02))
    setting = Setting.routed(0.2, (curve, curve), (curve, curve))
    document: dict[str, Any] = json.loads(json.dumps(setting_to_json(replace(setting, tokens_per_request=100.0))))
    return document


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda document: document.pop("shares"), "setting.shares"),
        (lambda document: document.update(extra=1), "setting.extra"),
        (lambda document: document.update(home=[]), "setting.home"),
        (lambda document: document["home"].update(name=""), "setting.home.name"),
        (lambda document: document["home"]["alone"].update(sizes=[2, 8]), "setting.home.alone"),
        (lambda document: document["home"]["alone"].update(sizes=[1, 8.5]), "setting.home.alone.sizes"),
        (lambda document: document["home"]["alone"].update(seconds=[0.01, "x"]), "setting.home.alone.seconds[1]"),
        (lambda document: document["home"]["stay"].update(moves=[]), "setting.home.stay"),
        (lambda document: document["home"]["stay"].update(moves=[[1.0]]), "setting.home.stay"),
        (lambda document: document["home"]["stay"].update(start=[0.5]), "setting.home.stay"),
        (lambda document: document.update(larger={}), "setting.larger"),
        (lambda document: document.update(larger=[], shares=[]), "setting"),
        (lambda document: document["larger"][0].pop("co_running"), "setting.larger[0].co_running"),
        (lambda document: document.update(max_ahead=1.5), "setting.max_ahead"),
        (lambda document: document.update(max_ahead=True), "setting.max_ahead"),
        (lambda document: document.update(confirmed=2.0), "setting"),
        (lambda document: document.update(request_s=float("nan")), "setting.request_s"),
        (lambda document: document.update(tokens_per_request=float("inf")), "setting.tokens_per_request"),
        (lambda document: document.update(hand_off_s=None), "setting.hand_off_s"),
    ],
)
def test_what_is_no_setting_is_refused_by_its_field(
    document: dict[str, Any], spoil: Callable[[dict[str, Any]], object], field: str
) -> None:
    setting_from_json(document)
    spoil(document)
    with pytest.raises(InvalidArgument) as caught:
        setting_from_json(document)
    assert caught.value.field == field
    assert field in caught.value.message


@pytest.mark.parametrize("given", [None, [], 1, "setting"])
def test_what_is_no_object_is_refused(given: object) -> None:
    with pytest.raises(InvalidArgument, match="setting must be an object"):
        setting_from_json(given)

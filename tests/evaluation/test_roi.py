"""Money by hand."""

from pathlib import Path

import pytest
from allroads.errors import InvalidArgument
from allroads.evaluation.prices import Prices, TokenPrice, gpu_prices, read_prices
from allroads.evaluation.report_file import (
    ArmFigures,
    Comparison,
    Interval,
    QueryFigures,
    Report,
    Role,
)
from allroads.evaluation.roi import lossless_bound, reckon, saving_at

TIERS = ("slm", "llm")


def exactly(value: float) -> Interval:
    return Interval(value=value, low=value, high=value)


def arm(
    role: Role, *, share: float, right: float, speed: float, computed: tuple[float, float], rejected: float = 0.0
) -> ArmFigures:
    return ArmFigures(
        name=role if role in TIERS else "r2r",
        role=role,
        routing={},
        num_problems=10,
        num_right=round(10 * right),
        num_unjudged=0,
        num_cut=0,
        num_too_long=0,
        num_degraded=0,
        accuracy=exactly(right),
        llm_share=exactly(share),
        shares={"slm": 1 - share, "llm": share},
        activated=exactly(1.0),
        published_cost=exactly(1.0),
        full_cost=None,
        tokens_per_s=speed,
        tokens_per_s_per_request=exactly(speed),
        length=exactly(100.0),
        prompt_length=50.0,
        shares_by_position=(share,) * 10,
        hand_offs=10.0,
        computed=computed,
        rejected=rejected,
    )


@pytest.fixture
def report() -> Report:
    query = QueryFigures(
        method="confidence",
        formula="published",
        request_share=0.1,
        accuracy=exactly(0.5),
        difference=exactly(0.3),
    )
    return Report(
        allroads="0",
        run={},
        tiers=TIERS,
        parameters=(1, 10),
        router_parameters={},
        machine={},
        arms=(
            arm("slm", share=0.0, right=0.4, speed=2000, computed=(150, 0)),
            arm("llm", share=1.0, right=0.9, speed=500, computed=(0, 150)),
            arm("routed", share=0.1, right=0.8, speed=1000, computed=(160, 140), rejected=10),
        ),
        comparisons=(Comparison(arm="r2r", of_llm=exactly(0.9), over_random=None, queries=(query,)),),
        curves=(),
        reliability=(),
        shown=(),
        command="",
    )


def test_prices_of_tokens(report: Report) -> None:
    prices = Prices("EUR", tokens={"slm": TokenPrice(1.0, 2.0), "llm": TokenPrice(10.0, 40.0)})
    result = reckon(report, prices)
    slm, llm, routed, query = result.ways
    assert slm.per_answer == pytest.approx((100 * 2 + 50 * 1) / 1e6)
    assert llm.per_answer == pytest.approx((100 * 40 + 50 * 10) / 1e6)
    # The small model made 90 + 10 tokens and read 60; the large one made 10 and read 130.
    assert routed.per_answer == pytest.approx((100 * 2 + 60 * 1 + 10 * 40 + 130 * 10) / 1e6)
    assert query.per_answer == pytest.approx((250 + 0.1 * 4500) / 1e6)
    assert query.accuracy == 0.5
    assert routed.per_million_tokens == pytest.approx(1960 / 100)
    assert routed.per_right_answer == pytest.approx(1960e-6 / 0.8)
    assert routed.saving == pytest.approx(1 - 1960 / 4500)
    (even,) = result.break_even
    # 1,560 whatever the share, and 4,000 for all of it.
    assert even.money == pytest.approx((4500 - 1560) / 4000)
    (scenarios,) = result.scenarios
    at = scenarios.savings[scenarios.shares.index(0.1)][scenarios.ratios.index(20.0)]
    # A token read costs a quarter of one written: 1.3 read for each routed token, 0.5 where the large one is alone.
    assert at == pytest.approx(1 - (1 / 20 + 0.1 + 1.3 / 4) / (1 + 0.5 / 4))


def test_prices_of_machines(report: Report) -> None:
    result = reckon(report, Prices("", gpu_per_hour={"slm": 1.8, "llm": 7.2}))
    slm, llm, routed, query = result.ways
    assert slm.per_answer == pytest.approx(1.8 * 100 / 2000 / 3600)
    assert llm.per_answer == pytest.approx(7.2 * 100 / 500 / 3600)
    assert routed.per_answer == pytest.approx(9.0 * 100 / 1000 / 3600)
    assert query.per_answer == pytest.approx(slm.per_answer + 0.1 * llm.per_answer)
    (even,) = result.break_even
    # Both machines: 9 an hour. Of 1 ms a token 0.2 are the large model's share of 2 ms, so 0.8 + 2 p = 1.6.
    assert even.money == pytest.approx(0.4)
    assert even.time[2.0] == pytest.approx(1 / 2 - 500 / 2000)


def test_one_machine_for_all(report: Report) -> None:
    slm, llm, routed, _ = reckon(report, gpu_prices(9, TIERS)).ways
    assert [way.per_answer * 3600 for way in (slm, llm, routed)] == pytest.approx([0.45, 1.8, 0.9])


def test_break_even_against_a_lossless_speed_up(report: Report) -> None:
    slm, llm = report.arm("slm"), report.arm("llm")
    # p < 1/S - L0/L1 with L0/L1 = 0.25.
    assert lossless_bound(1.0, slm, llm) == pytest.approx(0.75)
    assert lossless_bound(1.71, slm, llm) == pytest.approx(1 / 1.71 - 0.25)
    assert lossless_bound(5.0, slm, llm) < 0


def test_saving_by_hand() -> None:
    assert saving_at(0.1, 10.0) == pytest.approx(0.8)
    assert saving_at(0.1, 10.0, length_ratio=1.5) == pytest.approx(0.7)


def test_free_tokens_have_no_break_even(report: Report) -> None:
    free = Prices("", tokens={tier: TokenPrice(0.0, 0.0) for tier in TIERS})
    result = reckon(report, free)
    assert result.break_even[0].money is None
    assert result.ways[2].saving is None


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("tokens: {slm: {input_per_million: 1, output_per_million: -1}}", "tokens.llm"),
        ("tokens: {slm: {input_per_million: .nan, output_per_million: 1}, llm: {input_per_million: 1, "
         "output_per_million: 1}}", "tokens.slm.input_per_million"),
        ("tokens: {slm: {input_per_million: 1, output_per_million: -1}, llm: {input_per_million: 1, "
         "output_per_million: 1}}", "tokens.slm.output_per_million"),
        ("tokens: {slm: {output_per_million: 1}, llm: {}}", "tokens.slm"),
        ("gpu_per_hour: {slm: 1, llm: .inf}", "gpu_per_hour.llm"),
        ("gpu_per_hour: {slm: 1, llm: yes}", "gpu_per_hour.llm"),
        ("gpu_per_hour: {slm: 1, llm: '8'}", "gpu_per_hour.llm"),
        ("gpu_per_hour: {slm: 1, llm: 8, mlm: 3}", "gpu_per_hour.mlm"),
        ("gpu_per_hour: -3", "gpu_per_hour"),
        ("{}", "prices"),
        ("[1]", "prices"),
        ("a: [", "prices"),
        ("gpu_per_hour: 3\ncurrency: [EUR]", "currency"),
    ],
)  # fmt: skip
def test_wrong_prices_are_refused_by_name(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        read_prices(path, TIERS)
    assert caught.value.field == field


def test_right_prices_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("currency: EUR\ngpu_per_hour: {slm: 1, llm: 8.5}\n")
    assert read_prices(path, TIERS) == Prices("EUR", gpu_per_hour={"slm": 1.0, "llm": 8.5})

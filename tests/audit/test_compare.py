"""Sides of a comparison are picked as asked, and are what logs say."""

from pathlib import Path

import pytest
from allroads.audit.compare import Compared, Side, compare, parse_side
from allroads.errors import AllroadsError, InvalidArgument, StartupError

from .made_logs import World, decision, end, write


def by_measure(a: Side, b: Side, matters: float = 0.01) -> dict[str, Compared]:
    return {one.measure: one for one in compare(a, b, matters).measures}


def test_two_routers_that_differ(tmp_path: Path) -> None:
    a = write(tmp_path / "a", World(caught=0.9, needless=0.02).lines(150, seed=1))
    b = write(tmp_path / "b", World(caught=0.6, needless=0.02).lines(150, seed=2))
    found = by_measure(Side([a]), Side([b]))
    assert found["missed"].verdict == "differ"
    difference = found["missed"].difference
    assert difference is not None
    # 0.1 x 0.1 of 0.892 kept, and 0.1 x 0.4 of 0.922.
    assert difference.low < 0.04 / 0.922 - 0.01 / 0.892 < difference.high
    assert found["same_if_on"].verdict == "differ"


def test_a_router_against_itself(tmp_path: Path) -> None:
    a, b = (write(tmp_path / str(seed), World(spread=0.5).lines(300, seed=seed)) for seed in (1, 2))
    assert {one.verdict for one in by_measure(Side([a]), Side([b]), 0.03).values()} <= {
        "no difference that matters", "not enough data",
    }  # fmt: skip


def test_two_thresholds_of_one_log(tmp_path: Path) -> None:
    lines = [
        *World(needless=0.2).lines(60, seed=1, threshold=0.3, run="a"),
        *World(needless=0.02).lines(60, seed=2, run="b"),
    ]
    log = [write(tmp_path / "log", lines)]
    found = by_measure(parse_side("r2r@0.3", log), parse_side("@0.4", log))
    assert found["routed"].verdict == "differ"
    assert found["routed"].a.trials == found["routed"].b.trials == 60 * 40
    assert found["routed"].a.share > found["routed"].b.share


def test_two_policies_of_one_log(tmp_path: Path) -> None:
    log = [write(tmp_path / "log", [decision(1, policy="a"), end(1), decision(2, policy="b"), decision(3, policy="c")])]
    found = by_measure(parse_side("a", log), parse_side("b", log))
    assert (found["routed"].a.trials, found["routed"].b.trials) == (1, 1)
    assert found["routed"].verdict == "not enough data"


@pytest.mark.parametrize(("a", "b"), [("", ""), ("r2r", "r2r"), ("r2r", ""), ("r2r", "@0.4"), ("@0.4", "@0.4")])
def test_sides_that_are_not_apart_are_refused(tmp_path: Path, a: str, b: str) -> None:
    log = write(tmp_path / "log", [decision(1)])
    with pytest.raises(InvalidArgument, match="two logs, or two policies or thresholds of one"):
        compare(parse_side(a, [log]), parse_side(b, [tmp_path / "." / "log"]), 0.01)


def test_a_side_without_decisions_is_told(tmp_path: Path) -> None:
    log = [write(tmp_path / "log", [decision(1)])]
    with pytest.raises(StartupError, match=r"is of side B \(policy r2r, threshold 0.5\)"):
        compare(parse_side("r2r@0.4", log), parse_side("r2r@0.5", log), 0.01)


def test_a_threshold_that_is_no_number_is_refused() -> None:
    for text in ("r2r@", "r2r@x"):
        with pytest.raises(AllroadsError, match="a side is POLICY, POLICY@THRESHOLD or @THRESHOLD"):
            parse_side(text, [])

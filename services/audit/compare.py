"""A against B: two routers, or two thresholds of one, on requests of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import InvalidArgument, StartupError
from .decision_file import DecisionLog, EndLine, LogLine
from .rates import Difference, RatioSums, adjusted, differ
from .tally import CellSums, count_together

_LEVEL = 0.05
_CLOSE = 1e-9

Verdict = Literal["differ", "no difference that matters", "not enough data"]

MEASURES: dict[str, Callable[[CellSums], RatioSums]] = {
    "routed": lambda sums: sums.routed,
    "same_if_on": lambda sums: sums.same_if_on,
    "missed": lambda sums: sums.missed,
    "false_alarms": lambda sums: sums.false_alarms,
}
"""What is compared; described in `report.Shares`."""


@dataclass(frozen=True, slots=True)
class Side:
    """Which decisions of its log are one side's."""

    log: Sequence[Path]
    policy: str | None = None
    """Any where None."""
    threshold: float | None = None
    """Any where None."""

    def takes(self, line: LogLine) -> bool:
        """Whether a line is needed: a decision of this side, or the end of a request."""
        if isinstance(line, EndLine):
            return True
        if self.policy not in (None, line.policy):
            return False
        if self.threshold is None:
            return True
        return line.threshold is not None and abs(line.threshold - self.threshold) <= _CLOSE * max(
            1.0, abs(self.threshold)
        )

    def overlaps(self, other: "Side") -> bool:
        """Whether a decision may be on both sides."""
        if not {path.resolve() for path in self.log} & {path.resolve() for path in other.log}:
            return False
        apart = (self.policy != other.policy and None not in (self.policy, other.policy)) or (
            self.threshold != other.threshold and None not in (self.threshold, other.threshold)
        )
        return not apart


@dataclass(frozen=True, slots=True)
class Compared:
    """One measure of both sides."""

    measure: str
    a: RatioSums
    b: RatioSums
    difference: Difference | None
    """None where a side has fewer than two requests that tell of it."""
    p_adjusted: float | None
    """Of the measures that are compared together (Holm); None as above."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """All measures."""

    matters: float
    """Smallest difference that is worth seeing."""
    measures: list[Compared]


def parse_side(text: str, log: Sequence[Path]) -> Side:
    """Read `POLICY`, `POLICY@THRESHOLD` or `@THRESHOLD`; empty takes everything.

    Raises:
        InvalidArgument: the threshold is no number.
    """
    policy, at, threshold = text.partition("@")
    try:
        return Side(log, policy or None, float(threshold) if at else None)
    except ValueError:
        raise InvalidArgument(
            f"a side is POLICY, POLICY@THRESHOLD or @THRESHOLD, such as r2r@0.4; not {text!r}", field="a"
        ) from None


def compare(a: Side, b: Side, matters: float) -> Comparison:
    """Compare two sides.

    Raises:
        InvalidArgument: the sides are not apart, or `matters` is not between 0 and 1.
        StartupError: a log is missing or damaged, or a side has no decision.
    """
    if a.overlaps(b):
        raise InvalidArgument(
            "the two sides must be two logs, or two policies or thresholds of one: --a r2r@0.4 --b r2r@0.3", field="b"
        )
    return compare_sums(_sums(a, "a"), _sums(b, "b"), matters)


def compare_sums(a: CellSums, b: CellSums, matters: float) -> Comparison:
    """Compare what was counted.

    Raises:
        InvalidArgument: `matters` is not between 0 and 1.
    """
    pairs = {name: (of(a), of(b)) for name, of in MEASURES.items()}
    differences = {name: differ(*pair, matters) for name, pair in pairs.items()}
    # What a side cannot tell is not tested.
    tested = {name: one.p_value for name, one in differences.items() if one is not None and one.has_enough}
    p_adjusted = dict(zip(tested, adjusted(list(tested.values())), strict=True))
    return Comparison(
        matters,
        [
            Compared(name, *pairs[name], one, p_adjusted.get(name), _verdict(one, p_adjusted.get(name), matters))
            for name, one in differences.items()
        ],
    )


def _verdict(difference: Difference | None, p_adjusted: float | None, matters: float) -> Verdict:
    if difference is None or p_adjusted is None:
        return "not enough data"
    if p_adjusted < _LEVEL:
        return "differ"
    return "no difference that matters" if -matters < difference.low <= difference.high < matters else "not enough data"


def _sums(side: Side, name: str) -> CellSums:
    with DecisionLog(side.log) as log:
        sums = count_together(line for line in log.lines() if side.takes(line))
    if not sums.routed.trials:
        raise StartupError(
            f"no decision in {', '.join(map(str, side.log))} is of side {name.upper()} "
            f"(policy {side.policy or 'any'}, threshold {'any' if side.threshold is None else side.threshold}); "
            "`allroads audit report` shows which there are",
            field=name,
        )
    return sums

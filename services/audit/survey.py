"""A first look through a log: which routers decided in it, at which thresholds, and how long answers are."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import StartupError
from .decision_file import DecisionLine, EndLine, LogLine

NUM_POSITION_BINS = 10
_MAX_THRESHOLDS = 8
"""Of one policy and mode, told apart; with more, as where a share is held, they are one group."""
_MAX_POLICIES = 200
_LAST_POSITION = 65_535
"""Positions from here on are one, so that memory is bounded."""


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """Decisions that are counted together."""

    policy: str
    mode: str
    low: float | None
    """Least and greatest threshold; None where the policy has none."""
    high: float | None

    @property
    def threshold(self) -> str:
        """The threshold, or from which to which, for people."""
        if self.low is None or self.high is None:
            return "none"
        return f"{self.low:.4g}" if self.low == self.high else f"{self.low:.4g} to {self.high:.4g}"

    @property
    def label(self) -> str:
        """All of it on one line."""
        return f"{self.policy}, threshold {self.threshold}, {self.mode}"


@dataclass(slots=True)
class _Thresholds:
    told: set[float | None]
    low: float | None = None
    high: float | None = None

    def add(self, threshold: float | None) -> None:
        if len(self.told) <= _MAX_THRESHOLDS:
            self.told.add(threshold)
        if threshold is not None:
            self.low = threshold if self.low is None else min(self.low, threshold)
            self.high = threshold if self.high is None else max(self.high, threshold)


class Survey:
    """What must be known before decisions can be counted."""

    def __init__(self, lines: Iterable[LogLine]) -> None:
        """Read a log.

        Raises:
            StartupError: it holds no decision, or is a forgery.
        """
        self.num_decisions = self.num_ends = 0
        self.begins_s = self.ends_s = 0.0
        """Seconds since 1970, of the first and the last line."""
        self._thresholds: dict[tuple[str, str], _Thresholds] = {}
        positions: Counter[int] = Counter()
        for line in lines:
            self.begins_s = self.begins_s or line.t
            self.ends_s = line.t
            if isinstance(line, EndLine):
                self.num_ends += 1
                continue
            self.num_decisions += 1
            positions[min(line.position, _LAST_POSITION)] += 1
            self._add_threshold(line)
        if not self.num_decisions:
            raise StartupError(
                "the log holds no decision: serve requests in mode audit, canary or on with slm.decisions_path set, "
                "and a policy that decides on single tokens",
                field="log",
            )
        self._starts = _quantile_starts(positions, NUM_POSITION_BINS)
        self._ends = [*(start - 1 for start in self._starts[1:]), max(positions)]

    def group_of(self, line: DecisionLine) -> GroupKey:
        """Where a decision is counted.

        Raises:
            StartupError: it is none of those that were surveyed.
        """
        known = self._thresholds.get((line.policy, line.mode))
        if known is None:
            raise StartupError("the log was written over while it was read: copy it first", field="log")
        if len(known.told) > _MAX_THRESHOLDS:
            return GroupKey(line.policy, line.mode, known.low, known.high)
        return GroupKey(line.policy, line.mode, line.threshold, line.threshold)

    def position_bin(self, position: int) -> str:
        """The positions that are counted with one: `16 to 31`."""
        index = bisect_right(self._starts, position) - 1
        return self.position_bins[index]

    @property
    def position_bins(self) -> list[str]:
        """Names of all, in order. Each holds about as many decisions as another."""
        return [
            str(start) if start == end else f"{start} to {end}"
            for start, end in zip(self._starts, self._ends, strict=True)
        ]

    def _add_threshold(self, line: DecisionLine) -> None:
        pair = line.policy, line.mode
        if pair not in self._thresholds and len(self._thresholds) >= _MAX_POLICIES:
            raise StartupError(f"the log names more than {_MAX_POLICIES} policies, which no mesh has", field="policy")
        self._thresholds.setdefault(pair, _Thresholds(set())).add(line.threshold)


def _quantile_starts(positions: Counter[int], num_bins: int) -> list[int]:
    """First positions of bins with about equal counts; fewer bins where one position fills several."""
    total, seen, starts = sum(positions.values()), 0, [0]
    for position in sorted(positions):
        if position > starts[-1] and seen >= len(starts) * total / num_bins:
            starts.append(position)
        seen += positions[position]
    return starts

"""Counts decisions, by request and then over requests, in one pass and bounded memory."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from .decision_file import DecisionLine, EndLine, LogLine, RequestKey
from .drift import ScoreBins
from .rates import RatioSums
from .survey import GroupKey, Survey
from .token_class import TokenClasses

_MAX_OPEN_REQUESTS = 10_000
"""Whose end was not seen yet; beyond it the oldest counts as over, as after a crash."""

ALL = ("all", "")
CLASS, POSITION = "class", "position"
Cell = tuple[str, str]
"""What decisions are counted by, and which of it: `("class", "digit")`."""


@dataclass(slots=True)
class Counts:
    """Of some decisions of one request."""

    decisions: int = 0
    routed: int = 0
    scored: int = 0
    open: int = 0
    """With the large model's token known whatever the policy said."""
    same: int = 0
    """Of the open ones, those where it is the small model's."""
    kept: int = 0
    """Of the open ones, those that the policy leaves to the small model."""
    missed: int = 0
    """Of the kept ones, those where the large model writes another token."""
    sent: int = 0
    """Routed, and with the large model's token known."""
    needless: int = 0
    """Of the sent ones, those where the large model writes the same."""

    def add(self, line: DecisionLine) -> None:
        """Count a decision."""
        self.decisions += 1
        self.routed += line.routed
        self.scored += line.score is not None
        if line.routed and line.large is not None:
            self.sent += 1
            self.needless += not line.differs
        if line.is_open:
            self.open += 1
            self.same += not line.differs
            if not line.routed:
                self.kept += 1
                self.missed += line.differs


@dataclass(slots=True)
class CellSums:
    """The shares that are told of some decisions, as sums over requests."""

    routed: RatioSums = field(default_factory=RatioSums)
    """Of all decisions: those that the policy sends to a larger model."""
    agrees: RatioSums = field(default_factory=RatioSums)
    """Of the open ones: those where the small model proposes the large one's token."""
    same_if_on: RatioSums = field(default_factory=RatioSums)
    """Of the open ones: those where the routed answer has the large model's token."""
    missed: RatioSums = field(default_factory=RatioSums)
    """Of what is kept: where the large model writes another token."""
    false_alarms: RatioSums = field(default_factory=RatioSums)
    """Of what is sent: where the large model writes the same."""
    caught: RatioSums = field(default_factory=RatioSums)
    """Of the open ones where the models differ: those that are sent."""

    def add(self, counts: Counts) -> None:
        """A request is over."""
        self.routed.add(counts.routed, counts.decisions)
        self.agrees.add(counts.same, counts.open)
        self.same_if_on.add(counts.open - counts.missed, counts.open)
        self.missed.add(counts.missed, counts.kept)
        self.false_alarms.add(counts.needless, counts.sent)
        differing = counts.open - counts.same
        self.caught.add(differing - counts.missed, differing)


@dataclass(slots=True)
class PassSums:
    """Token positions that are worked on when requests are routed; of requests whose end was seen."""

    num_requests: int = 0
    decisions: int = 0
    scored: int = 0
    """By the router."""
    small: int = 0
    """By the small model: prompts and answers."""
    large: int = 0
    """By the large model when it is only visited: all that comes before each request's last visit."""
    large_alone: int = 0
    """By the large model where it writes everything."""

    def add(self, counts: Counts, last_routed: int, num_prompt: int) -> None:
        """A request is over. A model computes all tokens but the one it writes last."""
        whole = num_prompt + counts.decisions - 1
        self.num_requests += 1
        self.decisions += counts.decisions
        self.scored += counts.scored
        self.small += whole
        self.large += num_prompt + last_routed if last_routed >= 0 else 0
        self.large_alone += whole


@dataclass(slots=True)
class Tally:
    """Everything that is counted of a group."""

    cells: dict[Cell, CellSums] = field(default_factory=lambda: defaultdict(CellSums))
    passes: PassSums = field(default_factory=PassSums)
    scores: ScoreBins | None = None
    """Where the router's own are known."""


@dataclass(slots=True)
class _Open:
    """A request in one group."""

    cells: dict[Cell, Counts] = field(default_factory=lambda: defaultdict(Counts))
    last_routed: int = -1


class Tallies:
    """Tallies by group. `add` each line, then `finish`."""

    def __init__(self, survey: Survey, classes: TokenClasses | None, quantiles: dict[str, tuple[float, ...]]) -> None:
        """Nothing is counted yet.

        Args:
            survey: of the same lines.
            classes: of the served model's tokens, if they are known.
            quantiles: of scores at calibration, by policy.
        """
        self.groups: dict[GroupKey, Tally] = {}
        self._survey, self._classes, self._quantiles = survey, classes, quantiles
        self._open: OrderedDict[RequestKey, dict[GroupKey, _Open]] = OrderedDict()

    def count(self, lines: Iterable[LogLine]) -> dict[GroupKey, Tally]:
        """Count a whole log; the groups in order."""
        for line in lines:
            if isinstance(line, EndLine):
                self._close(self._open.pop(line.key, {}), line)
            else:
                self._add(line)
        while self._open:
            self._close(self._open.popitem(last=False)[1], None)
        return dict(sorted(self.groups.items(), key=lambda item: _order(item[0])))

    def _add(self, line: DecisionLine) -> None:
        key = self._survey.group_of(line)
        if (group := self.groups.get(key)) is None:
            quantiles = self._quantiles.get(line.policy, ())
            group = self.groups[key] = Tally(scores=ScoreBins(quantiles) if quantiles else None)
        if group.scores is not None and line.score is not None:
            group.scores.add(line.score)
        if (request := self._open.get(line.key)) is None:
            request = self._open[line.key] = {}
            if len(self._open) > _MAX_OPEN_REQUESTS:
                self._close(self._open.popitem(last=False)[1], None)
        part = request.setdefault(key, _Open())
        part.cells[ALL].add(line)
        part.cells[POSITION, self._survey.position_bin(line.position)].add(line)
        if self._classes is not None:
            part.cells[CLASS, self._classes[line.proposal]].add(line)
        if line.routed:
            part.last_routed = max(part.last_routed, line.position)

    def _close(self, request: dict[GroupKey, _Open], end: EndLine | None) -> None:
        for key, part in request.items():
            group = self.groups[key]
            for cell, counts in part.cells.items():
                group.cells[cell].add(counts)
            # Part of a request says little of what prompts cost.
            if end is not None and len(request) == 1:
                group.passes.add(part.cells[ALL], part.last_routed, end.num_prompt)


def _order(key: GroupKey) -> tuple[str, str, float]:
    return key.policy, key.mode, float("-inf") if key.low is None else key.low


def count_together(lines: Iterable[LogLine]) -> CellSums:
    """The shares of all decisions, whatever decided them."""
    total = CellSums()
    running: OrderedDict[RequestKey, Counts] = OrderedDict()
    for line in lines:
        if isinstance(line, EndLine):
            total.add(running.pop(line.key, Counts()))
            continue
        running.setdefault(line.key, Counts()).add(line)
        if len(running) > _MAX_OPEN_REQUESTS:
            total.add(running.popitem(last=False)[1])
    for counts in running.values():
        total.add(counts)
    return total

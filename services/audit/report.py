"""What a decision log says of each router in it: how much it sends on, what it misses, what it saves, how it drifts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..evaluation.cost import ParameterCounts
from .cost import Costs, Prices, costs_of
from .decision_file import DecisionLog
from .drift import CalibratedRouter, Drift, drift_of
from .rates import Rate
from .survey import GroupKey, Survey
from .tally import ALL, CLASS, POSITION, CellSums, Tallies, Tally
from .token_class import TokenClass, TokenClasses


@dataclass(frozen=True, slots=True)
class Shares:
    """What is told of some decisions. Where the log cannot tell, a share is None."""

    name: str
    """The class or the positions; empty where it is of all."""
    routed: Rate
    """Of all decisions: those that the policy sends to a larger model."""
    agrees: Rate
    """Of those where the large model's token is known whatever the policy said: the small model proposes it, too."""
    same_if_on: Rate
    """Of the same: the answer would have the large model's token if the policy were acted on."""
    missed: Rate
    """Of those among them that the policy leaves to the small model: the large one writes another token."""
    false_alarms: Rate
    """Of those that it sends on, where the large model's token is known: the large one writes the same."""
    caught: Rate
    """Of those where the models are known to differ, whatever the policy said: it sends them on."""

    @property
    def decisions(self) -> int:
        """How many there are."""
        return self.routed.trials

    @property
    def requests(self) -> int:
        """In how many answers."""
        return self.routed.num_requests


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Of a router in one mode at one threshold, or at one that moved."""

    key: GroupKey
    overall: Shares
    by_class: list[Shares]
    """Empty without a tokenizer."""
    by_position: list[Shares]
    costs: Costs
    drift: Drift | None
    """None without the router's own scores at calibration."""


@dataclass(frozen=True, slots=True)
class Audit:
    """All of a log."""

    files: list[str]
    begins_s: float
    ends_s: float
    """Seconds since 1970."""
    num_decisions: int
    num_ended_requests: int
    num_torn_lines: int
    groups: list[GroupReport]

    def to_json(self) -> str:
        """The same, as `audit.json` has it."""
        content = {"format": "allroads-audit", "version": 1, **asdict(self)}
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def make_audit(
    logs: Sequence[Path],
    *,
    classes: TokenClasses | None = None,
    routers: Sequence[CalibratedRouter] = (),
    sizes: ParameterCounts | None = None,
    prices: Prices | None = None,
) -> Audit:
    """Read decision logs, twice over, and report on them.

    Args:
        logs: newest file of each.
        classes: of the served model's tokens.
        routers: what scores were at calibration, by the name of the policy.
        sizes: of the two models and the router.
        prices: of the two models' tokens.

    Raises:
        StartupError: a log is missing, damaged or empty, or of another tokenizer.
    """
    by_name = {router.name: router for router in routers}
    quantiles = {router.name: router.score_quantiles for router in routers}
    with DecisionLog(logs) as log:
        survey = Survey(log.lines())
        tallies = Tallies(survey, classes, quantiles).count(log.lines())
        return Audit(
            files=[str(path) for path in log.paths],
            begins_s=survey.begins_s,
            ends_s=survey.ends_s,
            num_decisions=survey.num_decisions,
            num_ended_requests=survey.num_ends,
            num_torn_lines=log.num_torn,
            groups=[
                _group(key, tally, survey, by_name.get(key.policy), sizes, prices) for key, tally in tallies.items()
            ],
        )


def _group(
    key: GroupKey,
    tally: Tally,
    survey: Survey,
    router: CalibratedRouter | None,
    sizes: ParameterCounts | None,
    prices: Prices | None,
) -> GroupReport:
    overall = shares_of("", tally.cells[ALL])
    drift = None
    if router is not None and tally.scores is not None:
        threshold = key.low if key.low == key.high else None
        drift = drift_of(tally.scores, overall.routed, threshold=threshold, router=router)
    return GroupReport(
        key=key,
        overall=overall,
        by_class=_by(CLASS, list(TokenClass), tally),
        by_position=_by(POSITION, survey.position_bins, tally),
        costs=costs_of(overall.decisions, overall.routed.hits, tally.passes, sizes, prices),
        drift=drift,
    )


def _by(kind: str, names: Sequence[str], tally: Tally) -> list[Shares]:
    return [shares_of(name, tally.cells[kind, name]) for name in map(str, names) if (kind, name) in tally.cells]


def shares_of(name: str, sums: CellSums) -> Shares:
    """The shares that sums over requests tell."""
    return Shares(
        name,
        routed=Rate.of(sums.routed),
        agrees=Rate.of(sums.agrees),
        same_if_on=Rate.of(sums.same_if_on),
        missed=Rate.of(sums.missed),
        false_alarms=Rate.of(sums.false_alarms),
        caught=Rate.of(sums.caught),
    )

"""Scores against what came of them: how often the large model would have written another token."""

from collections import defaultdict
from collections.abc import Iterable

from .figures import interval
from .report_file import Reliability, ScoreBin
from .statistics import proportion

_NUM_BINS = 10

Judged = tuple[str, float, bool]
"""A policy, the score it had for a proposal, and whether the large model writes another token there."""


def reliability(decisions: Iterable[Judged]) -> list[Reliability]:
    """Of each policy the scores in ten bins of equal counts, lowest first; equal scores are never parted.

    Wording differs as well as meaning, so the share in a bin is an upper bound for what a score of divergence tells.
    """
    by_policy: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for policy, score, differs in decisions:
        by_policy[policy].append((score, differs))
    return [Reliability(policy=policy, bins=tuple(_bins(sorted(found)))) for policy, found in by_policy.items()]


def _bins(found: list[tuple[float, bool]]) -> Iterable[ScoreBin]:
    start = 0
    for index in range(1, _NUM_BINS + 1):
        end = max(start, index * len(found) // _NUM_BINS)
        while 0 < end < len(found) and found[end][0] == found[end - 1][0]:
            end += 1
        if end > start:
            part = found[start:end]
            yield ScoreBin(
                mean_score=sum(score for score, _ in part) / len(part),
                num_decisions=len(part),
                differs=interval(proportion(sum(differs for _, differs in part), len(part))),
            )
        start = end

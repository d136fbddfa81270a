"""What a check found."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_MAX_FAULTS = 3
"""Faults that are told of; the others are counted."""


class Outcome(StrEnum):
    """Of one check."""

    PASS = "pass"  # noqa: S105 (no password)
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """An outcome, with what a policy's author can act on."""

    outcome: Outcome
    reason: str


def passed(reason: str) -> Finding:
    """All is as it should be: what was looked at."""
    return Finding(Outcome.PASS, reason)


def skipped(reason: str) -> Finding:
    """There was nothing to look at: why."""
    return Finding(Outcome.SKIP, reason)


def failed(faults: Sequence[str]) -> Finding:
    """What is wrong, the first few of it."""
    more = f"; and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
    return Finding(Outcome.FAIL, "; ".join(faults[:_MAX_FAULTS]) + more)


def passed_unless(faults: Sequence[str], reason: str) -> Finding:
    """A failure where there are faults."""
    return failed(faults) if faults else passed(reason)

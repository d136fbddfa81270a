"""The end of processes that are not this one's children, as an event."""

import os
import select
from collections.abc import Iterable

TIMEOUT_S = 60.0


def has_ended(pid: int) -> bool:
    """Whether a process is gone; one that nobody has reaped yet counts as gone."""
    return ended_within(pid, 0)


def wait_for_ends(pids: Iterable[int]) -> None:
    for pid in pids:
        assert ended_within(pid, TIMEOUT_S), f"process {pid} lives on"


def ended_within(pid: int, seconds: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)

"""Which processor cores each service of a mesh runs on, so that they do not push each other off them.

A step of a small model takes less than a millisecond. Where a service is moved between cores, or another
runs on its core between two steps, its caches are cold at every step, and it takes twice as long.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

NameT = TypeVar("NameT", bound=str)


def usable_cores() -> list[int]:
    """Cores that this process may use; none where the system does not tell, and so cannot pin either."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def place(num_threads: Mapping[NameT, int], cores: Sequence[int]) -> dict[NameT, list[int]]:
    """The cores of each service, empty where it may run on all of them.

    In the order of `num_threads`, each service gets as many cores of its own as it has threads while at least
    one remains for all that come after it; these share the rest, which is the last one's in any case.
    """
    left = list(cores)
    placed: dict[NameT, list[int]] = {}
    for name, count in list(num_threads.items())[:-1]:
        if count >= len(left):
            break
        placed[name], left = left[:count], left[count:]
    return {name: placed.get(name, left if placed else []) for name in num_threads}


def pin(cores: Sequence[int]) -> None:
    """Run this process, and every thread that it starts from now on, on these cores only."""
    os.sched_setaffinity(0, cores)

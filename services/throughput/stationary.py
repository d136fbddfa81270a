"""The long run of a Markov chain that is given state by state."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def stationary(rows: Sequence[Mapping[int, float]]) -> NDArray[np.float64]:
    """Share [states] of each state in all jumps, in the long run; it exists for periodic chains as well.

    Args:
        rows: of each state, those that may follow it, with their probabilities.

    Raises:
        ValueError: no state can be reached from all others, so that chance decides on the shares.
    """
    _check_one_class(rows)
    balance = -np.eye(len(rows))
    for source, row in enumerate(rows):
        for target, chance in row.items():
            balance[target, source] += chance
    # The equations sum to nothing, so any of them can give way to the sum of all shares.
    balance[0] = 1.0
    right = np.zeros(len(rows))
    right[0] = 1.0
    return np.asarray(np.linalg.solve(balance, right), dtype=np.float64)


def _check_one_class(rows: Sequence[Mapping[int, float]]) -> None:
    """Refuse a chain in which no state can be reached from all others."""
    sources: list[list[int]] = [[] for _ in rows]
    for source, row in enumerate(rows):
        for target in row:
            sources[target].append(source)
    seen: set[int] = set()
    candidate = 0
    for state in range(len(rows)):
        if state not in seen:
            candidate = state
            seen |= _closure(state, sources)
    if len(_closure(candidate, sources)) < len(rows):
        raise ValueError("the chain has no one long run: chance decides in which of its states it ends up")


def _closure(start: int, edges: list[list[int]]) -> set[int]:
    seen, stack = {start}, [start]
    while stack:
        for other in edges[stack.pop()]:
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen

"""How many steps a stay lasts: a discrete phase-type distribution, of which the geometric one is the least.

A stay begins in a phase and changes it from step to step, until it ends with a step. A coin is one phase, a budget of
k steps is k phases in a row, and any distribution on 1 to k is k phases, each with its own chance to end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Phases:
    """A distribution of whole numbers from 1 on."""

    start: tuple[float, ...]
    """Probability to begin in each phase; sums to 1."""
    moves: tuple[tuple[float, ...], ...]
    """Probability to be in phase j for the next step, from i, and not to end; what a row lacks to 1 ends the stay."""

    def __post_init__(self) -> None:
        """Refuse what is no distribution, or one of stays that never end."""
        start, moves = np.asarray(self.start), np.asarray(self.moves)
        if moves.shape != (len(start), len(start)) or abs(start.sum() - 1.0) > 1e-9 or start.min() < 0.0:
            raise ValueError("a distribution over phases and a square of moves between them are needed")
        if moves.min() < 0.0 or moves.sum(axis=1).max() > 1.0 + 1e-9 or not np.isfinite(self.mean):
            raise ValueError("moves must not be negative, sum to 1 at most, and let every stay end")

    @classmethod
    def geometric(cls, ends: float) -> "Phases":
        """Each step ends the stay with the same probability, in (0, 1].

        Raises:
            ValueError: it is out of that range.
        """
        if not 0.0 < ends <= 1.0:
            raise ValueError(f"the probability that a step ends a stay must be in (0, 1], not {ends}")
        return cls((1.0,), ((1.0 - ends,),))

    @classmethod
    def fixed(cls, num_steps: int) -> "Phases":
        """Always so many steps."""
        return cls.of_counts([0.0] * (num_steps - 1) + [1.0])

    @classmethod
    def of_counts(cls, counts: Sequence[float]) -> "Phases":
        """Stays of 1, 2, ... steps, as often as `counts` says.

        Raises:
            ValueError: nothing was counted.
        """
        left = np.cumsum(np.asarray(counts, dtype=np.float64)[::-1])[::-1]
        if not len(left) or not left[0] > 0.0 or min(counts) < 0.0:
            raise ValueError("at least one stay must be counted, and none less than never")
        left = left[left > 0.0]
        num = len(left)
        moves = np.zeros((num, num))
        moves[np.arange(num - 1), np.arange(1, num)] = left[1:] / left[:-1]
        return cls((1.0, *[0.0] * (num - 1)), tuple(map(tuple, moves.tolist())))

    @property
    def num_phases(self) -> int:
        """How many phases there are."""
        return len(self.start)

    @cached_property
    def start_row(self) -> NDArray[np.float64]:
        """`start` as an array [phases]."""
        return np.asarray(self.start, dtype=np.float64)

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """`moves` as an array [phases, phases]."""
        return np.asarray(self.moves, dtype=np.float64)

    @cached_property
    def ends(self) -> NDArray[np.float64]:
        """Probability [phases] that a step from each phase ends the stay."""
        ends: NDArray[np.float64] = np.maximum(1.0 - self.matrix.sum(axis=1), 0.0)
        return ends

    @cached_property
    def visits(self) -> NDArray[np.float64]:
        """Mean number [phases] of steps of a stay in each phase."""
        try:
            solved = np.linalg.solve(np.eye(self.num_phases) - self.matrix.T, self.start_row)
        except np.linalg.LinAlgError:
            return np.full(self.num_phases, np.inf)
        return np.asarray(solved, dtype=np.float64)

    @cached_property
    def mean(self) -> float:
        """Mean steps of a stay."""
        return float(self.visits.sum())

    @cached_property
    def age(self) -> NDArray[np.float64]:
        """Distribution [phases] over phases that is found when one looks at a random step of many stays."""
        age: NDArray[np.float64] = self.visits / self.visits.sum()
        return age

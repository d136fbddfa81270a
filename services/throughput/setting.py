"""What the models of throughput are about: tiers with their step times, and how requests go between them.

N requests go round in a closed system: a stay at the home of some steps, then a visit to a larger tier of some
steps. All times are seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .phases import Phases

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StepCurve:
    """Duration of a step by the number of its rows: straight between points, and beyond the last as before it."""

    sizes: tuple[int, ...]
    """Rows, ascending; the first is 1."""
    seconds: tuple[float, ...]
    """Parallel to `sizes`."""

    def __post_init__(self) -> None:
        """Refuse what is no curve."""
        sizes, seconds = self.sizes, self.seconds
        if not sizes or sizes[0] != 1 or list(sizes) != sorted(set(sizes)) or len(sizes) != len(seconds):
            raise ValueError(f"sizes must begin with 1 and ascend, one for each time, not {sizes}")
        if not all(0.0 < value < float("inf") for value in seconds):
            raise ValueError(f"step times must be finite and positive, not {seconds}")

    @classmethod
    def affine(cls, base_s: float, row_s: float = 0.0) -> "StepCurve":
        """`base_s + row_s * rows`, where `row_s` is not negative."""
        return cls((1, 2), (base_s + row_s, base_s + 2 * row_s))

    def table(self, max_rows: int) -> Floats:
        """Durations of 0 to `max_rows` rows; that of none is that of one."""
        rows = np.maximum(np.arange(max_rows + 1, dtype=np.float64), 1.0)
        table = np.interp(rows, self.sizes, self.seconds)
        if len(self.sizes) > 1 and max_rows > self.sizes[-1]:
            (n0, n1), (t0, t1) = self.sizes[-2:], self.seconds[-2:]
            beyond = rows > n1
            table[beyond] = np.maximum(t1 + (rows[beyond] - n1) * (t1 - t0) / (n1 - n0), min(t0, t1))
        return table

    def at(self, rows: float) -> float:
        """Duration of a step of so many rows, which need not be whole."""
        whole = max(int(rows), 1)
        low, high = self.table(whole + 1)[whole:]
        return float(low + (max(rows, 1.0) - whole) * (high - low))

    def scaled(self, factor: float) -> "StepCurve":
        """The same curve, so many times slower."""
        return StepCurve(self.sizes, tuple(value * factor for value in self.seconds))


@dataclass(frozen=True)
class Tier:
    """A model and how long requests stay with it."""

    name: str
    alone: StepCurve
    """While no other tier of its device or host is at work."""
    co_running: StepCurve
    """While another one is."""
    stay: Phases
    """Steps of a stay at the home, until a hand-off; or of a visit to a larger tier."""

    @property
    def slow_down(self) -> float:
        """How many times longer a step of one row takes beside another tier."""
        return self.co_running.at(1) / self.alone.at(1)


@dataclass(frozen=True)
class Setting:
    """A mesh under a load."""

    home: Tier
    larger: tuple[Tier, ...]
    """Larger tiers in their order."""
    tokens_per_cycle: float
    """Tokens committed by a stay at home and the visit after it, drafts that stand among them."""
    shares: tuple[float, ...] = (1.0,)
    """Parallel to `larger`: of all hand-offs, those that go to each; their sum is 1."""
    hand_off_s: float = 0.0
    """From the token that is turned down to the hand-off, there, and back: what a visit takes besides waiting and
    steps."""
    max_ahead: int = 0
    """Steps for which the home goes on with a request that is away."""
    confirmed: float = 0.0
    """Of visits, those after which what was made ahead stays."""
    tokens_per_request: float = float("inf")
    """Length of an answer."""
    request_s: float = 0.0
    """What a request takes besides its tokens: its prompt, and the way in and out."""

    def __post_init__(self) -> None:
        """Refuse what is no setting."""
        if not self.larger or len(self.larger) != len(self.shares):
            raise ValueError(f"{len(self.larger)} larger tiers have {len(self.shares)} shares; one for each is needed")
        if abs(sum(self.shares) - 1.0) > 1e-6 or min(self.shares) < 0.0:
            raise ValueError(f"shares must not be negative and sum to 1, not {self.shares}")
        if not 0.0 <= self.confirmed <= 1.0 or self.max_ahead < 0:
            raise ValueError("confirmed must be from 0 to 1, and max_ahead not negative")
        if not (0.0 < self.tokens_per_cycle < float("inf") and self.tokens_per_request > 0.0):
            raise ValueError("tokens_per_cycle must be finite and positive, and tokens_per_request positive")
        if not (0.0 <= self.hand_off_s < float("inf") and 0.0 <= self.request_s < float("inf")):
            raise ValueError("hand_off_s and request_s must be finite and not negative")

    @classmethod
    def routed(
        cls,
        share: float,
        home: tuple[StepCurve, StepCurve],
        large: tuple[StepCurve, StepCurve],
        *,
        visit_ends: float = 1.0,
        **fields: float,
    ) -> "Setting":
        """A pair under R2R's rule: a share of the small model's steps is turned down, a token each written instead.

        Args:
            share: probability that the home's step gives a token that the large model must write, in (0, 1].
            home: step times alone and co-running.
            large: the same of the large model.
            visit_ends: probability that a visit ends with a step, in (0, 1].
            fields: others of `Setting`.
        """
        stay, visit = Phases.geometric(share), Phases.geometric(visit_ends)
        return cls(
            Tier("slm", *home, stay),
            (Tier("llm", *large, visit),),
            tokens_per_cycle=stay.mean - 1.0 + visit.mean,
            **fields,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Prediction:
    """What a model of a setting says of so many requests and such launch thresholds, in the long run."""

    num_requests: int
    thresholds: tuple[int, ...]
    """One for each larger tier."""
    tokens_per_s: float
    """Of all requests together."""
    batches: tuple[float, ...]
    """Mean rows of a batch of each larger tier."""
    waits_s: tuple[float, ...]
    """Mean time from the arrival of a visit at each larger tier until its first step begins."""
    busy: tuple[float, ...]
    """Share of the time in which each tier is in a step, the home first."""

    @property
    def tokens_per_s_each(self) -> float:
        """Of one request."""
        return self.tokens_per_s / self.num_requests


def floats(values: Sequence[float]) -> Floats:
    """An array of doubles."""
    return np.asarray(values, dtype=np.float64)

"""How long a tier's steps take, learned from the steps it makes: alone, and beside another tier.

A line, t = a + b * rows + c * positions, and for the part of a step that another tier's overlaps as much on top; fitted
by least squares of relative errors, old steps weighing less. Real curves are not straight: at 1, 2, 4, ... rows the
mean of the steps seen there overrides the line, the more of them there are.
"""

from collections.abc import Sequence

import numpy as np

from .setting import Floats, StepCurve, floats

KNOTS = tuple(2**power for power in range(9))
"""Rows at which a curve is known: 1 to 256."""
HALF_LIFE_S = 8.0
"""Of a step's weight, in time in which steps were seen: what stands still tells nothing new, and forgets nothing."""

_LONGEST_GAP_S = 1.0
_MOST_EFFECTIVE = 20_000.0
_LONGEST_STEP_S = 60.0
_OUTLIER = 5.0
_MOST_POSITIONS = 1e7
_LEAST_S, _LEAST_WEIGHT = 1e-7, 1e-3
_NUM_COEFFICIENTS = 6
_PRIOR_WEIGHT = 0.5
_KNOT_WEIGHT = 8.0
# Of a step of one row: what each row and each position adds, and what another tier's work costs.
_PRIOR_ROW, _PRIOR_POSITION, _PRIOR_SLOW_DOWN = 0.02, 0.02, 0.15
_PRIOR_PLACES = ((1.0, 1.0), (16.0, 16.0), (1.0, 64.0))


class StepFit:
    """The fit of one tier. All of `add` is arithmetic on a few numbers a step; `curves` solves six equations."""

    def __init__(self, prior_s: float) -> None:
        """Begin with a guess.

        Args:
            prior_s: of a step of one row; its curve's shape is a guess besides. Positive.
        """
        shape = floats([1.0 - _PRIOR_ROW - _PRIOR_POSITION, _PRIOR_ROW, _PRIOR_POSITION])
        self._guess = prior_s * np.concatenate([shape, _PRIOR_SLOW_DOWN * shape])
        both = np.repeat(np.asarray(_PRIOR_PLACES), 2, axis=0)
        self._prior_places = _features(both[:, 0], both[:, 1], np.tile([0.0, 1.0], len(_PRIOR_PLACES)))
        self._theta = self._guess
        self._moments = np.zeros((_NUM_COEFFICIENTS, _NUM_COEFFICIENTS))
        self._targets = np.zeros(_NUM_COEFFICIENTS)
        self._knot_weights = np.zeros((2, len(KNOTS)))
        self._knot_seconds = np.zeros((2, len(KNOTS)))
        self._knot_features = np.zeros((2, len(KNOTS), _NUM_COEFFICIENTS))
        self._num_steps = 0.0
        self._overlap = 0.0
        self._rows = 0.0
        self._positions = 0.0
        self._seconds = 0.0
        self._last_s: float | None = None

    @property
    def num_effective(self) -> float:
        """Steps that the fit rests on, old ones weighing less."""
        return self._num_steps

    @property
    def overlap(self) -> float:
        """Share of its steps' time, of late, in which another tier was in a step."""
        return self._overlap / self._seconds if self._seconds > 0.0 else 0.0

    @property
    def mean_rows(self) -> float:
        """Rows of a step, of late; 1 before the first."""
        return max(self._rows / self._num_steps, 1.0) if self._num_steps > 0.0 else 1.0

    @property
    def mean_s(self) -> float | None:
        """Duration of a step, of late; None before the first."""
        return self._seconds / self._num_steps if self._num_steps > 0.0 else None

    @property
    def positions_per_row(self) -> float:
        """Token positions that come with a row, of late; 1 before the first step."""
        return max(self._positions / self._rows, 1.0) if self._rows > 0.0 else 1.0

    @property
    def position_s(self) -> float:
        """What one more position adds to a step."""
        return float(self._theta[2] + self.overlap * self._theta[5])

    def add(
        self,
        rows: Sequence[float],
        positions: Sequence[float],
        seconds: Sequence[float],
        overlap: Sequence[float],
        now_s: float,
    ) -> None:
        """Learn from steps, parallel sequences; those that no step can be like are left out.

        Args:
            rows: sequences for which a token was wanted; steps without any count for nothing but their positions.
            positions: token positions that were computed.
            seconds: their durations.
            overlap: for which part of each another tier was in a step, 0 to 1.
            now_s: of any clock that goes forward.
        """
        n, m, t, o = (np.asarray(part, dtype=np.float64) for part in (rows, positions, seconds, overlap))
        if not len(n) == len(m) == len(t) == len(o):
            return
        with np.errstate(invalid="ignore"):
            sane = (t > 0.0) & (t <= _LONGEST_STEP_S) & (n >= 1.0) & (m >= 0.0) & (n <= 1e5) & (m <= _MOST_POSITIONS)
        sane &= np.isfinite(o)
        if not sane.any():
            return
        n, m, t, o = n[sane], np.maximum(m[sane], n[sane]), t[sane], np.clip(o[sane], 0.0, 1.0)
        self._forget(len(n), now_s)
        x = _features(n, m, o)
        if self._num_steps == 0.0:
            # The guess may be wrong by orders of magnitude; its shape is all that is kept of it.
            self._theta = self._guess * float(np.median(t / (x @ self._guess)))
        expected = x @ self._theta
        t = np.clip(t, expected / _OUTLIER, expected * _OUTLIER)
        weighted = x / (expected**2)[:, None]
        self._moments += weighted.T @ x
        self._targets += weighted.T @ t
        self._num_steps += len(n)
        self._rows += float(n.sum())
        self._positions += float(m.sum())
        self._seconds += float(t.sum())
        self._overlap += float(o @ t)
        self._fill_knots(n, x, t, o)
        self._solve()

    def add_positions(self, num_positions: float) -> None:
        """Positions that came with no row, such as all but the last part of a prompt."""
        if 0.0 <= num_positions <= _MOST_POSITIONS:
            self._positions += num_positions

    def curves(self) -> tuple[StepCurve, StepCurve]:
        """Alone and co-running, for the mean positions of a row of late."""
        sizes = floats(KNOTS)
        values = np.empty((2, len(KNOTS)))
        for part, factor in enumerate(self._knot_factors()):
            x = _features(sizes, sizes * self.positions_per_row, np.full(len(sizes), float(part)))
            values[part] = np.maximum((x @ self._theta) * factor, _LEAST_S)
        weights = self._knot_weights + _LEAST_WEIGHT
        alone, beside = values
        # Steps beside another tier take no less than others; where they seem to, the two are told apart by noise.
        both = (values * weights).sum(axis=0) / weights.sum(axis=0)
        values = np.where(alone > beside, both, values)
        alone, beside = (rising(row, weight) for row, weight in zip(values, weights, strict=True))
        beside = np.maximum(alone, beside)
        return StepCurve(KNOTS, tuple(alone.tolist())), StepCurve(KNOTS, tuple(beside.tolist()))

    def _forget(self, num_new: int, now_s: float) -> None:
        """Let what is known weigh less, by the time since the steps before and by how much is known."""
        gap_s = 0.0 if self._last_s is None else min(max(now_s - self._last_s, 0.0), _LONGEST_GAP_S)
        self._last_s = now_s
        keep = 0.5 ** (gap_s / HALF_LIFE_S)
        if self._num_steps * keep + num_new > _MOST_EFFECTIVE:
            keep = max(_MOST_EFFECTIVE - num_new, 0.0) / self._num_steps if self._num_steps else keep
        self._moments *= keep
        self._targets *= keep
        self._knot_weights *= keep
        self._knot_seconds *= keep
        self._knot_features *= keep
        self._num_steps *= keep
        self._rows *= keep
        self._positions *= keep
        self._seconds *= keep
        self._overlap *= keep

    def _fill_knots(self, n: Floats, x: Floats, t: Floats, o: Floats) -> None:
        """Each step counts for the knots on both sides of it, the nearer one more, and for the half it overlaps."""
        place = np.minimum(np.log2(n), len(KNOTS) - 1.0)
        low = np.minimum(place.astype(np.int64), len(KNOTS) - 2)
        part = (o >= 0.5).astype(np.int64)
        for knot, weight in ((low, 1.0 - (place - low)), (low + 1, place - low)):
            at = (part, knot)
            np.add.at(self._knot_weights, at, weight)
            np.add.at(self._knot_seconds, at, weight * t)
            np.add.at(self._knot_features, at, weight[:, None] * x)

    def _knot_factors(self) -> Floats:
        """How much slower than the line steps are [alone or not, knot], as far as there were enough of them."""
        line = self._knot_features @ self._theta
        num = self._knot_weights.sum(axis=0)
        # Some steps that are as the line says, so that few others say little.
        more = _KNOT_WEIGHT * np.where(num > 0.0, line.sum(axis=0) / np.maximum(num, 1e-300), 1.0)
        both = (self._knot_seconds.sum(axis=0) + more) / (line.sum(axis=0) + more)
        factors: Floats = (self._knot_seconds + both * more) / (line + more)
        return factors

    def _solve(self) -> None:
        """Least squares with the prior as a few steps more. What would come out negative is 0, the worst first."""
        guess = self._guess * float(self._guess @ self._targets / (self._guess @ self._moments @ self._guess))
        expected = self._prior_places @ guess
        prior = _PRIOR_WEIGHT * (self._prior_places / (expected**2)[:, None]).T
        moments = self._moments + prior @ self._prior_places
        targets = self._targets + prior @ expected
        free = np.arange(_NUM_COEFFICIENTS)
        theta = np.zeros(_NUM_COEFFICIENTS)
        while len(free):
            theta[:] = 0.0
            theta[free] = np.linalg.solve(moments[np.ix_(free, free)], targets[free])
            worst = free[int(np.argmin(theta[free] / guess[free]))]
            if theta[worst] >= 0.0:
                break
            free = free[free != worst]
        if np.isfinite(theta).all() and theta[:3].sum() > 0.0:
            self._theta = theta


def rising(values: Floats, weights: Floats) -> Floats:
    """The nearest that never falls, by least squares of so much weight: neighbours in the wrong order are pooled."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, low_count), (high, high_weight, high_count) = pools[-2:]
            total = low_weight + high_weight
            pools[-2:] = [((low * low_weight + high * high_weight) / total, total, low_count + high_count)]
    return np.repeat([pool[0] for pool in pools], [pool[2] for pool in pools])


def _features(rows: Floats, positions: Floats, overlap: Floats) -> Floats:
    """Regressors [steps, 6]: of a step alone, and of what comes on top for the part that overlaps."""
    alone = np.stack([np.ones_like(rows), rows, positions], axis=1)
    return np.concatenate([alone, overlap[:, None] * alone], axis=1)

"""The published chain (arXiv 2610.12242, appendix D): exact, and out of reach beyond a handful of requests.

M models serve N requests. A state holds, for each model, how many requests wait, how many are in its batch, and how
much of the batch is left, in quanta; it is looked at when batches have ended and others been launched. The next batches
to end send their requests on by the rows of `moves`, all counts of which are enumerated. It is kept as a reference for
`chain`, which scales.
"""

from collections.abc import Iterator, Sequence
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .stationary import stationary

Counts = tuple[int, ...]
State = tuple[Counts, Counts, Counts]
"""Of each model: requests that wait, requests in its batch, quanta until that ends (0 where idle)."""

_QUANTUM_S = 1e-4
_MAX_STATES = 3_000


def published_throughput(
    moves: ArrayLike,
    commits: ArrayLike,
    step_s: Sequence[float],
    thresholds: Sequence[int],
    num_requests: int,
    *,
    quantum_s: float = _QUANTUM_S,
    max_states: int = _MAX_STATES,
) -> float:
    """Token/s of the whole system in the long run.

    Args:
        moves: P [models, models], the probability that a request goes from i to j after a step on i.
        commits: C [models, models], the tokens that this commits.
        step_s: seconds [models] of a step, whatever its rows; rounded to quanta.
        thresholds: B [models]; an idle model takes all that wait once they are so many.
        num_requests: N. At first all wait for the first model.
        quantum_s: the unit of time.
        max_states: refuse what would need more.

    Raises:
        ValueError: an argument is out of range; the thresholds could make all requests wait for ever; there are too
            many states; or which states the system ends up in is left to chance, so that it has no one throughput.
    """
    split, tokens = _matrices(moves, commits)
    quanta = _quanta(step_s, quantum_s, len(split))
    _check_thresholds(thresholds, num_requests, len(split))
    chain = _Chain(split, quanta, tuple(thresholds))
    first = chain.launched((num_requests, *[0] * (len(split) - 1)), (0,) * len(split), (0,) * len(split))
    states, rows = _enumerate(chain, first, max_states)
    weights = stationary(rows)
    per_row = (split * tokens).sum(axis=1)
    committed = np.asarray([sum(state[1][i] * per_row[i] for i in _ending(state)) for state in states])
    held = np.asarray([_holding(state) for state in states])
    return float(weights @ committed / (weights @ held * quantum_s))


class _Chain:
    """How a state is followed by others."""

    def __init__(self, split: NDArray[np.float64], quanta: Counts, thresholds: Counts) -> None:
        self._split, self._quanta, self._thresholds = split.tolist(), quanta, thresholds

    def launched(self, waiting: Counts, batches: Counts, left: Counts) -> State:
        """The state after each idle model that may has taken all that wait for it."""
        takes = [
            not batch and wait >= least for wait, batch, least in zip(waiting, batches, self._thresholds, strict=True)
        ]
        return (
            tuple(0 if take else wait for take, wait in zip(takes, waiting, strict=True)),
            tuple(wait if take else batch for take, wait, batch in zip(takes, waiting, batches, strict=True)),
            tuple(whole if take else rest for take, whole, rest in zip(takes, self._quanta, left, strict=True)),
        )

    def following(self, state: State) -> dict[State, float]:
        """States that may come next, with their probabilities."""
        waiting, batches, left = state
        ending, held = _ending(state), _holding(state)
        found: dict[Counts, float] = {waiting: 1.0}
        for model in ending:
            arrivals = list(_multinomial(batches[model], self._split[model]))
            merged: dict[Counts, float] = {}
            for counts, chance in found.items():
                for added, other in arrivals:
                    key = tuple(map(sum, zip(counts, added, strict=True)))
                    merged[key] = merged.get(key, 0.0) + chance * other
            found = merged
        batches = tuple(0 if model in ending else batch for model, batch in enumerate(batches))
        left = tuple(max(rest - held, 0) for rest in left)
        return {self.launched(counts, batches, left): chance for counts, chance in found.items()}


def _holding(state: State) -> int:
    """Quanta until the next batch ends."""
    return min(rest for batch, rest in zip(state[1], state[2], strict=True) if batch)


def _ending(state: State) -> list[int]:
    """Models whose batches end next, together."""
    held = _holding(state)
    return [model for model, (batch, rest) in enumerate(zip(state[1], state[2], strict=True)) if batch and rest == held]


def _multinomial(num: int, chances: Sequence[float]) -> Iterator[tuple[Counts, float]]:
    """Each way in which `num` requests may be spread, with its probability."""
    if len(chances) == 1:
        if num == 0 or chances[0] > 0.0:
            yield (num,), chances[0] ** num
        return
    for here in range(num + 1 if chances[0] > 0.0 else 1):
        factor = comb(num, here) * chances[0] ** here
        for rest, chance in _multinomial(num - here, chances[1:]):
            yield (here, *rest), factor * chance


def _enumerate(chain: _Chain, first: State, max_states: int) -> tuple[list[State], list[dict[int, float]]]:
    """All states that can be reached, breadth-first, and of each the chances of those that follow it."""
    index, states, rows = {first: 0}, [first], []
    for state in states:
        row: dict[int, float] = {}
        for after, chance in chain.following(state).items():
            if after not in index:
                if len(states) >= max_states:
                    raise ValueError(
                        f"more than {max_states} states: take fewer requests, a coarser quantum_s, or the chain that "
                        "scales"
                    )
                index[after] = len(states)
                states.append(after)
            row[index[after]] = chance
        rows.append(row)
    return states, rows


def _matrices(moves: ArrayLike, commits: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    split, tokens = np.asarray(moves, dtype=np.float64), np.asarray(commits, dtype=np.float64)
    if split.ndim != 2 or split.shape[0] != split.shape[1] or not len(split) or tokens.shape != split.shape:
        raise ValueError(f"moves and commits must be squares of one size, not of {split.shape} and {tokens.shape}")
    if not np.all(split >= 0.0) or not np.allclose(split.sum(axis=1), 1.0, atol=1e-9):
        raise ValueError("moves must not be negative, and each of its rows must sum to 1")
    if not np.all(np.isfinite(tokens)) or np.any(tokens < 0.0):
        raise ValueError("commits must be finite and not negative")
    return split, tokens


def _quanta(step_s: Sequence[float], quantum_s: float, num_models: int) -> Counts:
    if not 0.0 < quantum_s < float("inf"):
        raise ValueError(f"quantum_s must be finite and positive, not {quantum_s}")
    if len(step_s) != num_models or not all(0.0 < seconds < float("inf") for seconds in step_s):
        raise ValueError(f"step_s must be {num_models} finite and positive times, not {list(step_s)}")
    quanta = tuple(round(seconds / quantum_s) for seconds in step_s)
    if min(quanta) < 1:
        raise ValueError(f"step_s {list(step_s)} has a time below half of quantum_s {quantum_s}: make that smaller")
    return quanta


def _check_thresholds(thresholds: Sequence[int], num_requests: int, num_models: int) -> None:
    if num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, not {num_requests}")
    if len(thresholds) != num_models or min(thresholds) < 1:
        raise ValueError(f"thresholds must be {num_models} numbers from 1 on, not {list(thresholds)}")
    if sum(threshold - 1 for threshold in thresholds) >= num_requests:
        raise ValueError(
            f"thresholds {list(thresholds)} can make all {num_requests} requests wait for ever: "
            "the sum of B - 1 must be below the number of requests"
        )

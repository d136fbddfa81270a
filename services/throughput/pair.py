"""Home and one larger tier: a Markov chain embedded at the launches of the larger tier's batches.

A batch takes all that wait, so at its launch `m` requests are in it and `N - m` are at home: as many states as there
are sizes. While it runs, requests leave the home with its steps, each by its own coin; then those of the batch that
stay, or are handed off again at once, wait with them; then, while too few wait, the home goes on alone. Both parts are
sums of independent coins, so every transition is a product of binomial distributions.

A launch is also told by where the home is in its own step: at the beginning of one, where a step has just brought
enough company, or somewhere inside, where the batch follows another. What the chain would have to know of single
requests (how long they are at home already, how far the home went ahead with them) it knows as a distribution over all,
found as a fixed point.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from .binomial import Binomials
from .phases import Phases
from .setting import Floats, Ints

_UNFINISHED = np.array((0.125, 0.375, 0.625, 0.875, 1.0))
"""Kinds of launches: part of the home's step that is still to be done."""
_ALIGNED = len(_UNFINISHED) - 1
_MAX_HOME_STEPS = 4096
"""Of the home, followed one by one within one batch or one wait."""
_MASS = 1e-9
"""Probability that is neglected."""
_MAX_ROUNDS = 60
_WAIT_POINTS = ((0.2254, 5 / 18), (1.0, 8 / 18), (1.7746, 5 / 18))
"""Gauss and Legendre's points and weights for a mean over all parts of twice the mean wait."""


@dataclass(frozen=True)
class Pair:
    """A home and a larger tier, in several cases at once. Tables: seconds [cases, N + 1] of a step by its rows."""

    home_alone: Floats
    home_beside: Floats
    """While the larger tier is in a step."""
    large_alone: Floats
    large_beside: Floats
    """While the home is in a step."""
    portions: Floats
    """[cases]: requests that each one of the N stands for. It counts where nobody is left."""
    stay: Phases
    """Steps at home until a hand-off."""
    visit_ends: float
    """Probability that a step ends a visit."""
    max_ahead: int = 0
    confirmed: float = 0.0
    hand_off_s: float = 0.0
    """What a hand-off and the return from it take."""

    @property
    def num_cases(self) -> int:
        """How many are solved side by side."""
        return len(self.home_alone)

    @property
    def num_requests(self) -> int:
        """All that go round."""
        return int(self.home_alone.shape[1]) - 1


@dataclass(frozen=True)
class Cycle:
    """What happens in the long run: arrays [cases]."""

    visits_per_s: Floats
    """Visits that end."""
    batch: Floats
    """Mean rows of a batch."""
    wait_s: Floats
    """Mean time from the arrival of a visit until its first step begins."""
    at_large: Floats
    """Mean number of requests there, waiting or in a step."""
    home_busy: Floats
    """Share of the time."""
    large_busy: Floats
    again: Floats
    """Of visits that end, those whose request is handed off again at once."""
    states: tuple["State", ...]
    """Of each case, for a solution nearby to begin with."""


class State(NamedTuple):
    """What the chain improves from round to round, of one case."""

    launches: Floats
    """Probability [kinds, N + 1] of a launch being of a kind and size."""
    at_launch: Floats
    """Distributions [kinds, phases] over phases of those at home, by the kind of launch."""
    waited_steps: Floats
    """Of the home, from a hand-off to the launch that takes it in."""
    again: Floats
    """Of those in a batch, the ones that were handed off again at once."""
    ahead_rows: Floats
    """Of requests that are away, those with which the home goes on."""


def solve_pair(pair: Pair, thresholds: Ints, start: Sequence[State] | None = None, *, tolerance: float = 2e-4) -> Cycle:
    """The stationary cycles with launch thresholds, which are lowered to the number of requests.

    Args:
        pair: what goes round.
        thresholds: [cases], from 1 on.
        start: of solutions nearby, one for each case, to begin with.
        tolerance: part by which the throughput may still change in a round.
    """
    chain = _Chain(pair, np.clip(thresholds, 1, pair.num_requests), start)
    last = chain.round()
    cycle = chain.cycle(last, last)
    for _ in range(_MAX_ROUNDS):
        before, this = cycle.visits_per_s, chain.round()
        # Of two rounds, since sizes may take turns for ever.
        last, cycle = this, chain.cycle(last, this)
        if np.all(np.abs(cycle.visits_per_s - before) <= tolerance * before):
            break
    return cycle


@dataclass(frozen=True)
class _Round:
    """Means over what follows a launch, up to the next one: arrays [cases]."""

    size: Floats
    service_s: Floats
    in_step_s: Floats
    """Of all rows together."""
    waiting_s: Floats
    """Of all requests together."""
    wait_s: Floats
    """From the end of the batch to the next launch."""
    home_idle_s: Floats
    home_steps: Floats
    again: Floats
    """Requests that are handed off again at once."""

    @property
    def seconds(self) -> Floats:
        """From launch to launch."""
        return self.service_s + self.wait_s

    @property
    def steps_per_s(self) -> Floats:
        """Of the home, while it is busy."""
        return self.home_steps / np.maximum(self.seconds - self.home_idle_s, 1e-12)


@dataclass(frozen=True)
class _Service:
    """What happens while a batch runs, by the kind of its launch and by its size: arrays [cases, kinds, N + 1]."""

    seconds: Floats
    steps: Floats
    """Of the home meanwhile; not whole."""
    whole: Ints
    """Of these, those that end meanwhile."""
    unfinished: Floats
    """Part of its step that is left at the end."""
    stayed: Floats
    """[cases, kinds, N + 1, phases]: that one who was at home was not handed off, and is in that phase."""
    left: Floats
    """Probability that it was."""
    idle: Floats
    """Probability that the home is idle at the end."""
    idle_s: Floats
    """Mean time for which it is."""
    waiting_s: Floats
    """Mean of the time that those wait, all together, who are handed off meanwhile."""


@dataclass(frozen=True)
class _Wait:
    """What happens from the end of a batch until enough wait: arrays [cases]."""

    seconds: Floats
    steps: Floats
    waiting_s: Floats
    launches: Floats
    """Probability [cases, N + 1] of each size."""
    phases: Floats
    """[cases, phases] of those at home at the launch; its sum is the probability of such a launch."""


class _Chain:
    """Distributions that each round from launches to launches improves."""

    def __init__(self, pair: Pair, thresholds: Ints, start: Sequence[State] | None) -> None:
        self._pair, self._thresholds = pair, thresholds
        num, cases = self._num, self._cases = pair.num_requests, pair.num_cases
        self._binomials = Binomials(num)
        self._sizes = np.arange(num + 1, dtype=np.float64)
        self._is_enough = self._sizes >= thresholds[:, None]
        # Phases: back at home, while the step there that is in progress goes on without it; those of the stay; and
        # the way back, for those that are handed off again.
        self._way = max(pair.hand_off_s / float(pair.home_beside[:, -1].mean()) + 0.5, 1.0) if pair.hand_off_s else 0.0
        """Steps of the home that one needs who is handed off again: the first is half over."""
        way_steps = ceil(self._way)
        last = pair.stay.num_phases
        self._moves = np.diag(np.ones(last + way_steps), 1)
        self._moves[: last + 1] = 0.0
        self._moves[0, 1 : last + 1], self._moves[1 : last + 1, 1 : last + 1] = pair.stay.start_row, pair.stay.matrix
        self._fresh, age = np.zeros((2, len(self._moves)))
        self._fresh[1 : last + 1], age[1 : last + 1] = pair.stay.start_row, pair.stay.age
        ahead = [self._fresh]
        for _ in range(pair.max_ahead):
            ahead.append(ahead[-1] @ self._moves)
        self._ahead = np.array(ahead)
        """What has not ended of stays that begin while a request is away, after 0, 1, ... steps."""
        shape = (cases, len(_UNFINISHED))
        if start is not None and start[0].at_launch.shape == (len(_UNFINISHED), len(age)):
            self._state = State(*(np.array(parts) for parts in zip(*start, strict=True)))
        else:
            launches = np.zeros((*shape, num + 1))
            launches[np.arange(cases), _ALIGNED, thresholds] = 1.0
            at_launch = np.broadcast_to(age, (*shape, len(age)))
            rows = np.full(cases, float(pair.max_ahead > 0))
            self._state = State(launches, at_launch, np.zeros(cases), np.zeros(cases), rows)

    def cycle(self, one: _Round, other: _Round) -> Cycle:
        """What two rounds, one after the other, come to."""
        seconds, size = one.seconds + other.seconds, one.size + other.size
        waiting_s = one.waiting_s + other.waiting_s
        ended = size * self._pair.visit_ends
        return Cycle(
            visits_per_s=ended / seconds,
            batch=0.5 * size,
            wait_s=waiting_s / ended,
            at_large=(waiting_s + one.in_step_s + other.in_step_s) / seconds,
            home_busy=1.0 - (one.home_idle_s + other.home_idle_s) / seconds,
            large_busy=(one.service_s + other.service_s) / seconds,
            again=(one.again + other.again) / ended,
            states=tuple(State(*parts) for parts in zip(*self._state, strict=True)),
        )

    def round(self) -> _Round:
        """From the launches of the last round to those that follow them."""
        pair, sizes, launches = self._pair, self._sizes, self._state.launches
        service = self._serve()
        ahead = self._ahead_after(service)
        again = pair.visit_ends * pair.confirmed * (1.0 - ahead.sum(axis=3))
        stay = 1.0 - pair.visit_ends + (0.0 if self._way else 1.0) * again
        waiting = self._waiting(service, stay)
        with_few, with_enough = self._after(service, ahead, stay)
        wait = self._wait(np.where(self._is_enough[:, None], 0.0, waiting), with_few)
        following = np.where(self._is_enough[:, None], waiting, 0.0)
        at_once = following[:, _ALIGNED].sum(axis=1, keepdims=True) + 1e-300
        following[:, _ALIGNED] += wait.launches
        at_launch = np.repeat(with_enough[:, None], len(_UNFINISHED), axis=1)
        aligned = at_once * with_enough + wait.phases
        at_launch[:, _ALIGNED] = aligned / aligned.sum(axis=1, keepdims=True)

        def mean(values: Floats) -> Floats:
            return np.asarray((launches * values).sum(axis=(1, 2)))

        total = _Round(
            size=mean(sizes),
            service_s=mean(service.seconds),
            in_step_s=mean(sizes * service.seconds),
            waiting_s=mean(service.waiting_s) + wait.waiting_s,
            wait_s=wait.seconds,
            home_idle_s=mean(service.idle_s),
            home_steps=mean(service.steps) + wait.steps,
            again=mean(sizes * again),
        )
        away_s = (total.waiting_s + total.in_step_s) / total.size + pair.hand_off_s
        self._state = State(
            launches=following / following.sum(axis=(1, 2), keepdims=True),
            at_launch=at_launch,
            waited_steps=(total.waiting_s / total.size + pair.hand_off_s) * total.steps_per_s,
            again=total.again / total.size,
            ahead_rows=np.minimum(1.0, pair.max_ahead / np.maximum(away_s * total.steps_per_s, 1e-9)),
        )
        return total

    def _serve(self) -> _Service:
        """Follow the steps of the home while batches of all sizes run, launched in all ways."""
        pair, sizes, num = self._pair, self._sizes, self._num
        at_home, large_s = num - sizes, pair.large_beside[:, None]
        shape = (self._cases, len(_UNFINISHED), num + 1)
        resting = 1.0 - self._state.ahead_rows[:, None, None]
        portions = pair.portions[:, None, None]
        mass = [self._state.at_launch]
        todo = _UNFINISHED[:, None]
        left_s = np.broadcast_to(large_s, shape)
        whole = np.zeros(shape, dtype=np.int64)
        steps, idle, idle_s, waiting_s = np.zeros((4, *shape))
        rest, runs = np.broadcast_to(todo, shape), np.ones(shape, dtype=bool)
        for number in range(_MAX_HOME_STEPS):
            there = mass[number].sum(axis=2)[..., None]
            mass.append(mass[number] @ self._moves)
            step_s = _at_rows(pair.home_beside, num - resting * (num - at_home * there))
            took_s = np.where(runs, np.minimum(step_s * todo, left_s), 0.0)
            idle = np.where(
                runs, np.maximum(1.0 - there, 0.0) ** (at_home * portions) * resting ** (sizes * portions), idle
            )
            idle_s += took_s * idle
            steps += took_s / step_s
            left_s = left_s - took_s
            ends = runs & (left_s <= 0.0) & (took_s < step_s * todo)
            rest = np.where(ends, todo - took_s / step_s, rest)
            runs &= ~ends
            if not runs.any():
                break
            whole += runs
            waiting_s += runs * at_home * (there - mass[-1].sum(axis=2)[..., None]) * left_s
            todo = np.ones((1, 1))
        cases, kinds, _ = np.ogrid[: self._cases, : len(_UNFINISHED), :1]
        stayed = np.asarray(mass)[whole, cases, kinds]
        large_part = idle_s / large_s
        idle_s = large_part * pair.large_alone[:, None]
        return _Service(
            seconds=(1.0 - large_part) * large_s + idle_s,
            steps=steps,
            whole=whole,
            unfinished=rest,
            stayed=stayed,
            left=np.clip(1.0 - stayed.sum(axis=3), 0.0, 1.0),
            idle=idle,
            idle_s=idle_s,
            waiting_s=waiting_s,
        )

    def _ahead_after(self, service: _Service) -> Floats:
        """[cases, kinds, N + 1, phases]: stays that began when a request left, and have not ended when its step has."""
        # The wait is of any length up to twice its mean. The step that is in progress at the launch is not over; and
        # for one that is handed off again at once, it is not for this stay.
        begun = 1.0 - _UNFINISHED[:, None]
        ahead = np.zeros((*service.whole.shape, len(self._fresh)))
        if not self._pair.max_ahead:
            return ahead + self._fresh
        waited = self._state.waited_steps[:, None, None]
        for missing, parts in ((begun, 1.0 - self._state.again), ((begun > 0.0).astype(float), self._state.again)):
            for point, weight in _WAIT_POINTS if parts.any() else ():
                steps = np.maximum(point * waited - missing + service.whole, 0.0)
                ahead += weight * parts[:, None, None, None] * _interpolated(self._ahead, steps)
        return ahead

    def _waiting(self, service: _Service, stay: Floats) -> Floats:
        """Probability [cases, kinds, N + 1] of where the home is in its step, and of how many wait, as a batch ends."""
        launches = self._state.launches
        where = np.nonzero(launches > _MASS)
        sizes, weights, idle = self._sizes[where[2]], launches[where], service.idle[where]
        at_home = self._num - sizes
        some = self._binomials.pmf(at_home, service.left[where])
        # Where the home is idle, all have left, and whoever is back begins a new step with it.
        every = np.zeros_like(some)
        every[np.arange(len(sizes)), at_home.astype(np.int64)] = 1.0
        if stay.any():
            staying = self._binomials.pmf(sizes, stay[where])
            some, every = self._binomials.sums(some, staying), self._binomials.sums(every, staying)
        every *= idle[:, None]
        of_case = np.zeros((self._cases, len(sizes)))
        of_case[where[0], np.arange(len(sizes))] = weights
        shares = _shares(service.unfinished[where])
        waiting = (of_case[:, None] * shares) @ (some - every)
        waiting[:, _ALIGNED] += of_case @ every
        return np.maximum(waiting, 0.0)

    def _after(self, service: _Service, ahead: Floats, stay: Floats) -> tuple[Floats, Floats]:
        """Distributions [cases, phases] of those at home as a batch ends: where too few wait to launch, and where not.

        Who is still at home says much of how many have left, so the two differ.
        """
        pair, sizes = self._pair, self._sizes
        at_home = self._num - sizes
        # Of one who was at the larger tier.
        back = pair.confirmed * ahead + ((1.0 - pair.confirmed) * service.idle)[..., None] * self._fresh
        back[..., 0] += (1.0 - pair.confirmed) * (1.0 - service.idle)
        if self._way:
            again = pair.confirmed * (1.0 - ahead.sum(axis=3))
            longer = self._way - floor(self._way)
            back[..., -floor(self._way)] += (1.0 - longer) * again
            back[..., -ceil(self._way)] += longer * again
        enough = np.maximum(self._thresholds[:, None, None] - np.rint(stay * sizes), 0.0)
        few, few_left = self._binomials.below(enough, at_home, service.left, self._state.launches > _MASS)
        remained = service.stayed / np.maximum(1.0 - service.left, 1e-12)[..., None]
        still = np.stack((few * at_home - few_left, (1.0 - few) * at_home - (at_home * service.left - few_left)))
        returned = pair.visit_ends * sizes * np.stack((few, 1.0 - few))
        masses = np.einsum("ackm,ckmp->acp", self._state.launches * np.maximum(still, 0.0), remained)
        masses += np.einsum("ackm,ckmp->acp", self._state.launches * returned, back)
        totals = masses.sum(axis=2, keepdims=True)
        anybody = masses.sum(axis=0) / np.maximum(totals.sum(axis=0), 1e-300)
        few_after, enough_after = np.where(totals > 1e-12, masses / np.maximum(totals, 1e-300), anybody)
        return few_after, enough_after

    def _wait(self, few: Floats, phases: Floats) -> _Wait:
        """Follow the home alone while fewer wait than the threshold.

        Args:
            few: probability [cases, kinds, N + 1] of where the home is in its step, and of so many waiting.
            phases: distribution [cases, phases] of those at home.
        """
        sizes, is_enough = self._sizes, self._is_enough
        resting = 1.0 - self._state.ahead_rows[:, None]
        step_s = _at_rows(self._pair.home_alone, self._num - resting * sizes)
        # Work to be done in the first step, then in each of those that follow.
        todo, few = np.einsum("k,ckn->cn", _UNFINISHED, few), few.sum(axis=1)
        launches, mixed = np.zeros_like(few), np.zeros_like(phases)
        seconds, steps, waiting_s = np.zeros((3, self._cases))
        is_steady = False
        for number in range(_MAX_HOME_STEPS):
            if is_steady or few.sum(axis=1).max() <= _MASS:
                break
            moved = phases @ self._moves
            left = moved.sum(axis=1, keepdims=True)
            hazard = 1.0 - (left / phases.sum(axis=1, keepdims=True))[:, 0]
            last, phases = phases, moved / np.maximum(left, 1e-300)
            is_steady = number > 0 and bool(np.all(np.abs(phases - last) <= 1e-9))
            rises = self._binomials.rises(hazard)
            if is_steady:
                # From here on every step is like the last: all that are left at once.
                on = np.where(is_enough[:, None, :] | is_enough[:, :, None], 0.0, rises)
                solved = np.linalg.solve(np.eye(len(sizes)) - on.swapaxes(1, 2), few[..., None])
                todo = few = np.asarray(solved[..., 0], dtype=np.float64)
            seconds += (todo * step_s).sum(axis=1)
            waiting_s += (todo * sizes * step_s).sum(axis=1)
            steps += todo.sum(axis=1)
            after = (few[:, None] @ rises)[:, 0]
            launched = np.where(is_enough, after, 0.0)
            launches += launched
            mixed += phases * launched.sum(axis=1, keepdims=True)
            todo = few = np.where(is_enough, 0.0, after)
        return _Wait(seconds, steps, waiting_s, launches, mixed)


def _shares(unfinished: Floats) -> Floats:
    """[kinds, n]: how much of each belongs to each kind of launch, by the part of the home's step that is left."""
    kinds = np.arange(len(_UNFINISHED))
    return np.maximum(1.0 - np.abs(np.interp(unfinished, _UNFINISHED, kinds) - kinds[:, None]), 0.0)


def _at_rows(tables: Floats, rows: Floats) -> Floats:
    """Tables [cases, N + 1] at rows [cases, ...] that need not be whole."""
    low = np.minimum(rows.astype(np.int64), tables.shape[1] - 2)
    flat = low + (np.arange(len(tables)) * tables.shape[1]).reshape(-1, *[1] * (rows.ndim - 1))
    values = tables.ravel()
    return np.asarray(values[flat] + (rows - low) * (values[flat + 1] - values[flat]))


def _interpolated(table: Floats, at: Floats) -> Floats:
    """Rows of a table [steps, phases] at steps [...] that need not be whole; beyond the last it is the last."""
    at = np.minimum(at, len(table) - 1)
    low = at.astype(np.int64)
    share = (at - low)[..., None]
    return (1.0 - share) * table[low] + share * table[np.minimum(low + 1, len(table) - 1)]

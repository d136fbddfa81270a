"""Batches that wait for company: for whom, for how long, and that nobody waits for ever (C40)."""

from pathlib import Path

import pytest
from allroads.config import ModelSettings
from allroads.engine.engine import Engine
from allroads.engine.launch_gate import LaunchGate
from allroads.engine.sequence import Sequence, State
from hypothesis import given
from hypothesis import strategies as st

from .conftest import sequence

FLUSH_S = 0.05


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _gate(threshold: int, flush_s: float = FLUSH_S) -> tuple[LaunchGate, Clock]:
    clock = Clock()
    gate = LaunchGate(clock)
    gate.set(threshold, flush_s)
    return gate, clock


def _ready(count: int) -> list[Sequence]:
    return [sequence([5, 6, 7]) for _ in range(count)]


def _causes(gate: LaunchGate) -> tuple[int, int, int]:
    return gate.num_full, gate.num_last, gate.num_flushed


@pytest.mark.parametrize("threshold", [1, 2, 4])
@pytest.mark.parametrize("num_active", [0, 1, 3, 10])
def test_no_more_are_waited_for_than_could_come(threshold: int, num_active: int) -> None:
    for num_ready in range(num_active + 1):
        gate, _ = _gate(threshold)
        opens = gate.opens(_ready(num_ready), num_active)
        assert opens == (num_ready == 0 or num_ready >= min(threshold, num_active))
        assert gate.is_holding == (not opens)


@pytest.mark.parametrize(("threshold", "flush_s"), [(0, 1.0), (1, 1.0), (8, 0.0)])
def test_it_holds_nobody_where_it_is_not_to(threshold: int, flush_s: float) -> None:
    gate, _ = _gate(threshold, flush_s)
    assert gate.opens(_ready(1), 9)
    assert gate.opens([], 9)
    assert not gate.is_holding
    assert _causes(gate) == (1, 0, 0)
    assert not gate._since_s, "what costs something is not kept"


def test_causes_are_counted() -> None:
    gate, clock = _gate(3)
    assert gate.opens(_ready(3), 9)
    assert gate.opens(_ready(2), 2)
    late = _ready(1)
    assert not gate.opens(late, 9)
    clock.now_s += FLUSH_S
    assert gate.opens(late, 9)
    assert _causes(gate) == (1, 1, 1)


def test_the_wait_counts_from_the_oldest_that_is_still_there() -> None:
    gate, clock = _gate(8)
    first, second, third = _ready(3)
    assert not gate.opens([first], 9)
    clock.now_s += 0.02
    assert not gate.opens([first, second], 9)
    assert gate.held_s == pytest.approx(0.03)
    clock.now_s += 0.02
    # The oldest leaves: who is left waits its own time, not a new one.
    assert not gate.opens([second, third], 9)
    assert gate.held_s == pytest.approx(0.03)
    clock.now_s += 0.02
    assert not gate.opens([third], 9)
    assert gate.held_s == pytest.approx(0.03)
    assert gate.opens([], 9)
    assert not gate.is_holding
    # One that comes back has waited since then only.
    assert not gate.opens([first], 9)
    assert gate.held_s == pytest.approx(FLUSH_S)


def test_who_was_in_a_step_waits_from_its_end() -> None:
    gate, clock = _gate(2)
    pair = _ready(2)
    assert gate.opens(pair, 9)
    gate.launched(pair, [(one, 3) for one in pair])
    clock.now_s += 1.0
    gate.ended()
    clock.now_s += 0.01
    assert not gate.opens(pair[:1], 9)
    assert gate.held_s == pytest.approx(FLUSH_S - 0.01)


def test_a_batch_under_way_is_not_held_again() -> None:
    gate, _ = _gate(4)
    long, *others = _ready(4)
    assert gate.opens([long, *others], 9)
    gate.launched([long, *others], [(long, 1), *((one, 3) for one in others)])
    long.num_computed = 1
    gate.ended()
    # It goes on, with whom it finds, and is no new launch.
    assert gate.opens([long, others[0]], 9)
    assert _causes(gate) == (1, 0, 0)
    gate.launched([long, others[0]], [(long, 2), (others[0], 3)])
    gate.ended()
    assert not gate.opens([long], 9)


def test_a_new_rule_judges_who_waits_already() -> None:
    gate, clock = _gate(8)
    waiting = _ready(2)
    assert not gate.opens(waiting, 9)
    clock.now_s += 0.02
    gate.set(8, 0.03)
    assert not gate.opens(waiting, 9)
    assert gate.held_s == pytest.approx(0.01)
    gate.set(2, 0.03)
    assert gate.opens(waiting, 9)


Arrivals = st.lists(st.tuples(st.floats(0, 0.2), st.integers(0, 5)), max_size=40)
"""Time since the event before, and whom it is about."""


@given(events=Arrivals, threshold=st.integers(2, 9), flush_s=st.floats(1e-4, 0.2))
def test_nobody_is_held_longer_than_the_flush(events: list[tuple[float, int]], threshold: int, flush_s: float) -> None:
    gate, clock = _gate(threshold, flush_s)
    everybody = _ready(6)
    arrived_s: dict[Sequence, float] = {}
    num_looks = 0

    def look() -> None:
        nonlocal num_looks
        num_looks += 1
        ready = list(arrived_s)
        if gate.opens(ready, len(everybody)):
            gate.launched(ready, [(one, 3) for one in ready])
            arrived_s.clear()
        else:
            assert 0 < gate.held_s <= flush_s + 1e-6
        assert all(clock.now_s - since_s <= flush_s + 1e-6 for since_s in arrived_s.values())

    # After the last event there is time for all who wait.
    for pause_s, who in [*events, (1.0, 0)]:
        at_s = clock.now_s + pause_s
        # The thread sleeps for as long as a batch is held, and looks then.
        while gate.is_holding and clock.now_s + gate.held_s <= at_s:
            clock.now_s += gate.held_s
            look()
        clock.now_s = at_s
        # Who is there leaves; who is not comes.
        one = everybody[who]
        if arrived_s.pop(one, None) is None:
            arrived_s[one] = clock.now_s
        look()
    assert num_looks <= 2 * (len(events) + 1), "as often as something happens, or somebody's time is over"


@pytest.fixture
def waiting(model_path: Path) -> tuple[Engine, Clock]:
    """An engine with small steps, and the clock that it goes by."""
    clock = Clock()
    settings = ModelSettings(path=model_path, max_step_tokens=8, shares_prefixes=False)
    return Engine.load(settings, catch_up="idle", clock=clock), clock


def _open(engine: Engine, *prompts: list[int], is_ahead: bool = False) -> list[Sequence]:
    opened = [sequence(prompt) for prompt in prompts]
    for one in opened:
        one.is_ahead = is_ahead
        engine.open(one)
    engine.admit()
    return opened


def test_an_engine_holds_a_step_and_tells_for_how_long(waiting: tuple[Engine, Clock]) -> None:
    engine, clock = waiting
    away, first = _open(engine, [5, 6], [7, 8])
    engine.pend(away)
    engine.launch(2, FLUSH_S)
    assert engine.step() is None
    assert engine.held_s == pytest.approx(FLUSH_S)
    clock.now_s += FLUSH_S
    assert engine.held_s == 0
    step = engine.step()
    assert step is not None
    assert (step.wanted, step.num_positions) == ([first], 2)
    assert engine.held_s is None


def test_while_a_step_is_held_others_are_computed_ahead(waiting: tuple[Engine, Clock]) -> None:
    engine, _ = waiting
    (ahead,) = _open(engine, list(range(5, 20)), is_ahead=True)
    (first,) = _open(engine, [7, 8])
    engine.launch(2, FLUSH_S)
    for computed in (8, 14):
        step = engine.step()
        assert step is not None
        assert (step.wanted, ahead.num_computed, first.num_computed) == ([], computed, 0)
    assert engine.step() is None
    # It was held all the time, from when it came.
    assert engine.held_s == pytest.approx(FLUSH_S)


def test_a_prompt_in_chunks_is_launched_once(waiting: tuple[Engine, Clock]) -> None:
    engine, _ = waiting
    away, long, second = _open(engine, [5, 6], list(range(5, 35)), list(range(40, 70)))
    engine.pend(away)
    engine.launch(2, FLUSH_S)
    steps = 0
    while State.RUNNING in (long.state, second.state):
        step = engine.step()
        assert step is not None
        assert step.num_positions <= 8
        for one, token_id in zip(step.sequences, step.proposals, strict=True):
            one.append([token_id])
            engine.pend(one)
        steps += 1
    assert steps == 60 // 8 + 1
    assert engine.scheduler.gate.num_full == 1


def _answers(path: Path, threshold: int) -> list[list[int]]:
    """What six requests are written that come and go in turns of their own."""
    clock = Clock()
    engine = Engine.load(ModelSettings(path=path), clock=clock)
    engine.launch(threshold, FLUSH_S)
    opened = _open(engine, *([5 + index, 9, 11 + index] for index in range(6)))
    for turn in range(300):
        clock.now_s += engine.held_s or 0.0
        for index, one in enumerate(opened):
            if one.state is State.PENDING and (turn + index) % 7 == 0:
                engine.resume(one)
        step = engine.step()
        for one, token_id in zip(step.sequences, step.proposals, strict=True) if step else ():
            one.append([token_id])
            if len(one) == 24:
                engine.close(one)
            elif len(one) % 4 == 0:
                engine.pend(one)
    causes = _causes(engine.scheduler.gate)
    assert all(causes) if threshold > 1 else causes[1:] == (0, 0)
    return [one.tokens for one in opened]


def test_greedy_tokens_are_the_same_whatever_is_waited_for(model_path: Path) -> None:
    at_once = _answers(model_path, 1)
    assert [len(tokens) for tokens in at_once] == [24] * 6
    assert _answers(model_path, 4) == at_once


def test_three_of_seven_finish_early_and_the_others_go_on(model_path: Path) -> None:
    engine = Engine.load(ModelSettings(path=model_path), clock=Clock())
    engine.launch(8, FLUSH_S)
    seven = _open(engine, *([5 + index, 6] for index in range(7)))
    for one in seven[4:]:
        engine.pend(one)
    assert engine.step() is None
    held = []
    for one in seven[4:]:
        engine.close(one)
        held.append(engine.step() is None)
    assert held == [True, True, False]
    assert engine.scheduler.gate.num_last == 1

"""The time of a step: from when it could have begun to the end of its turn."""

from allroads.model.step_clock import Arrival, StepClock


class _Time:
    def __init__(self) -> None:
        self.now_ns = 1_000_000

    def __call__(self) -> int:
        return self.now_ns


def _turn(clock: StepClock, time: _Time, *arrived_ns: int, took_ns: int, is_busy: bool = True) -> tuple[int, int]:
    """Start and end of a turn that takes so long."""
    clock.begin([Arrival(arrived_ns=at) for at in arrived_ns])
    time.now_ns += took_ns
    clock.end(is_busy=is_busy)
    return clock.began_ns, clock.ended_ns


def test_busy_turns_follow_each_other_without_a_gap() -> None:
    time = _Time()
    clock = StepClock(time)
    _turn(clock, time, took_ns=50_000)
    time.now_ns += 7_000  # what the thread does between turns
    assert _turn(clock, time, 1_055_000, took_ns=30_000) == (1_050_000, 1_087_000)
    assert clock.step_us == 37


def test_an_idle_thread_could_begin_when_the_first_command_came() -> None:
    time = _Time()
    clock = StepClock(time)
    _turn(clock, time, took_ns=1_000, is_busy=False)
    time.now_ns = 2_000_000
    assert _turn(clock, time, 1_990_000, 1_995_000, took_ns=5_000) == (1_990_000, 2_005_000)


def test_without_a_command_it_begins_with_the_turn() -> None:
    time = _Time()
    clock = StepClock(time)
    _turn(clock, time, took_ns=1_000, is_busy=False)
    time.now_ns = 2_000_000
    assert _turn(clock, time, took_ns=5_000) == (2_000_000, 2_005_000)


def test_times_that_cannot_be_are_brought_within_the_turn() -> None:
    time = _Time()
    clock = StepClock(time)
    _turn(clock, time, took_ns=1_000, is_busy=False)
    assert _turn(clock, time, 5, took_ns=1_000, is_busy=False) == (1_001_000, 1_002_000)
    assert _turn(clock, time, 9_000_000, took_ns=1_000) == (1_002_000, 1_003_000)
    assert _turn(clock, time, took_ns=5_000_000_000_000) == (1_003_000, 5_000_001_003_000)
    assert clock.step_us == 2**32 - 1


def test_when_a_command_came_makes_it_no_other() -> None:
    assert Arrival(arrived_ns=1) == Arrival(arrived_ns=2)

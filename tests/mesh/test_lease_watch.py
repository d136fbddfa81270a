"""Waits that nobody ends are ended by the watch, once; what must wait for quiet does."""

from threading import Event
from threading import enumerate as enumerate_threads
from typing import NoReturn

from allroads.errors import Unavailable
from allroads.mesh.lease_watch import LeaseWatch

TIMEOUT_S = 30


def test_a_wait_over_its_limit_is_ended_once_and_others_are_not() -> None:
    watch, ended, over, other = LeaseWatch(0.05), [], Event(), Event()

    def end() -> None:
        ended.append("late")
        over.set()

    watch.add(lambda: True, lambda: ended.append("over before"))
    watch.add(over.is_set, end)
    assert over.wait(TIMEOUT_S)
    watch.add(lambda: False, other.set)
    assert other.wait(TIMEOUT_S)
    assert ended == ["late"]


def test_room_is_for_waits_that_go_on() -> None:
    watch, over = LeaseWatch(TIMEOUT_S, max_waits=2), Event()
    watch.add(over.is_set, lambda: None)
    assert watch.has_room()
    watch.add(over.is_set, lambda: None)
    assert not watch.has_room()
    over.set()
    assert watch.has_room()


def test_errands_are_run_when_they_are_due_and_no_wait_goes_on() -> None:
    watch, over, due, run = LeaseWatch(TIMEOUT_S), Event(), Event(), Event()
    asked = Event()

    def is_due() -> bool:
        assert over.is_set(), "a wait goes on"
        asked.set()
        return due.is_set()

    looked = Event()

    def is_over() -> bool:
        looked.set()
        return over.is_set()

    watch.add(is_over, lambda: None)
    watch.later(is_due, run.set)
    assert looked.wait(TIMEOUT_S)
    over.set()
    assert asked.wait(TIMEOUT_S)
    assert not run.is_set()
    due.set()
    assert run.wait(TIMEOUT_S)


def test_it_goes_on_when_cuda_fails() -> None:
    watch, tried, run = LeaseWatch(0.05), Event(), Event()

    def broken() -> NoReturn:
        tried.set()
        raise Unavailable("cuMemFree failed: CUDA_ERROR_ILLEGAL_ADDRESS")

    watch.later(broken, broken)
    assert tried.wait(TIMEOUT_S)
    watch.later(lambda: True, run.set, after_s=0.1)
    assert run.wait(TIMEOUT_S)


def test_errands_that_hang_in_cuda_hold_no_wait_up() -> None:
    watch, hangs, ended, free = LeaseWatch(0.05), Event(), Event(), Event()

    def hang() -> bool:
        hangs.set()
        return free.wait(TIMEOUT_S)

    watch.later(hang, lambda: None)
    assert hangs.wait(TIMEOUT_S)
    watch.add(ended.is_set, ended.set)
    assert ended.wait(TIMEOUT_S)
    free.set()


def test_when_it_is_stopped_nothing_is_left_of_it() -> None:
    watch, asked, ended = LeaseWatch(TIMEOUT_S), Event(), Event()

    def is_due() -> bool:
        asked.set()
        return False

    watch.later(is_due, lambda: None)
    assert asked.wait(TIMEOUT_S)
    watch.add(ended.is_set, ended.set)
    threads = [watch._thread, *watch._errands]
    watch.stop()
    watch.stop()
    assert ended.is_set(), "nobody would end it later"
    assert len(threads) == 2
    assert not [thread for thread in enumerate_threads() if thread in threads]

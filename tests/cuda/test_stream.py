"""The surroundings of a thread that works on a GPU, and of one that does not."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from allroads.cuda.stream import own_stream, priority_number
from allroads.engine.thread import EngineThread

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


def test_priorities_are_the_ends_of_the_devices_range() -> None:
    assert priority_number("high", (0, -5)) == -5
    assert priority_number("normal", (0, -5)) == 0
    # A device that knows none has 0 alone.
    assert {priority_number("high", (0, 0)), priority_number("normal", (0, 0))} == {0}


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_the_cpu_has_none(device: torch.device | str) -> None:
    assert own_stream(device, "high") is nullcontext


def worked_within(surroundings: "list[str]", *, fails: bool = False) -> tuple[list[str], list[BaseException]]:
    """What a decode thread does, in order, and how it crashed."""
    turned, crashes, crashed = threading.Event(), list[BaseException](), threading.Event()

    @contextmanager
    def within() -> Iterator[None]:
        surroundings.append(f"enter {threading.current_thread().name}")
        if fails:
            raise RuntimeError("no such device")
        yield
        surroundings.append("leave")

    def turn(commands: list[int]) -> float:
        if not turned.is_set():
            surroundings.append("turn")
        turned.set()
        return 0.05

    def on_crash(error: BaseException) -> None:
        crashes.append(error)
        crashed.set()

    thread: EngineThread[int] = EngineThread("decode", turn, on_crash=on_crash, within=within)
    thread.start()
    assert (crashed if fails else turned).wait(10)
    thread.stop()
    return surroundings, crashes


def test_the_decode_thread_enters_its_surroundings_once_and_leaves_them_at_the_end() -> None:
    assert worked_within([]) == (["enter decode", "turn", "leave"], [])


def test_surroundings_that_cannot_be_entered_are_a_crash() -> None:
    done, crashes = worked_within([], fails=True)
    assert done == ["enter decode"]
    assert [str(error) for error in crashes] == ["no such device"]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("priority", ["normal", "high"])
def test_work_goes_through_a_stream_of_its_own(priority: str) -> None:
    default = torch.cuda.current_stream()
    with own_stream("cuda", "high" if priority == "high" else "normal")():
        stream = torch.cuda.current_stream()
        assert stream != default
        assert (stream.priority < 0) == (priority == "high")
        total = torch.ones(1000, device="cuda").sum()
    assert torch.cuda.current_stream() == default
    assert total.item() == 1000

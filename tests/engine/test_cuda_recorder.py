"""What the real recorder asks of torch, in which order, and what it leaves behind when a recording fails.

Torch's own calls are replaced, since they need a device; they are held to torch's signatures.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
import torch
from allroads.cuda.capturing import CAPTURING
from allroads.cuda.graphs import CudaRecorder, first_line

DEVICE = torch.device("cuda", 1)


class _Torch:
    """Notes calls. A recording during which work raised cannot be ended, as on a device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.streams = ["default"]
        self.num_open = 0
        """Recordings that the device's allocator believes to be under way."""
        self.num_pools = 0
        self.spoilt: set[tuple[int, int]] = set()
        """Pools of recordings that the host's allocator believes to be under way."""
        signature = inspect.signature(torch.cuda.graph)
        torch_calls = self

        class Stream:
            def __init__(self, priority: int) -> None:
                torch_calls.calls.append(f"stream of priority {priority}")

            @staticmethod
            def priority_range() -> tuple[int, int]:
                return 0, -5

            def wait_stream(self, other: str) -> None:
                torch_calls.calls.append(f"wait for {other}")

            def synchronize(self) -> None:
                torch_calls.calls.append("synchronize")

        class Graph:
            def replay(self) -> None:
                torch_calls.calls.append("replay")

        @contextmanager
        def within(stream: Stream) -> Iterator[None]:
            self.streams.append("side")
            yield from self._within()

        @contextmanager
        def graph(*arguments: Any, **named: Any) -> Iterator[None]:
            given = signature.bind(*arguments, **named).arguments
            assert given["capture_error_mode"] == "thread_local"
            assert isinstance(given["stream"], Stream)
            assert CAPTURING.locked()
            self.calls.append("begin")
            self.num_open += 1
            # As torch does it: another stream of its own context, which it does not leave where ending fails.
            self.streams.append("side")
            if given["pool"] in self.spoilt:
                raise RuntimeError("already recording to mempool_id")
            try:
                yield
            except Exception as error:
                self.spoilt.add(given["pool"])
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture") from error
            self.num_open -= 1
            self.streams.pop()
            self.calls.append("end")

        def end(device: int, pool: tuple[int, int]) -> None:
            assert device == 1
            assert pool[1] <= self.num_pools
            if not self.num_open:
                raise RuntimeError("not currently recording")
            self.num_open -= 1

        def new_pool() -> tuple[int, int]:
            self.num_pools += 1
            return 0, self.num_pools

        @contextmanager
        def on(device: torch.device) -> Iterator[None]:
            assert device == DEVICE
            yield

        for name, value in {
            "Stream": Stream, "CUDAGraph": Graph, "graph": graph, "stream": within, "device": on,
            "graph_pool_handle": new_pool, "current_stream": lambda: self.streams[-1],
            "current_device": lambda: 1, "memory_reserved": lambda device: 5,
            "empty_cache": lambda: None,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)

    def _within(self) -> Iterator[None]:
        depth = len(self.streams) - 1
        try:
            yield
        finally:
            del self.streams[depth:]

    def work(self, fault: Callable[[], object] = lambda: None) -> Callable[[], str]:
        """Work that fails, if at all, only while it is recorded."""

        def work() -> str:
            assert torch.is_inference_mode_enabled()
            self.calls.append(f"work on {self.streams[-1]}")
            if self.num_open:
                fault()
            return "result"

        return work


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> _Torch:
    return _Torch(monkeypatch)


def test_work_is_warmed_up_and_recorded_on_the_recorders_stream(calls: _Torch) -> None:
    recorder = CudaRecorder(DEVICE, "high")
    work = calls.work()
    recording = recorder.record(work)
    assert calls.calls == [
        "stream of priority -5", "wait for default", "work on side", "work on side", "begin", "work on side", "end",
        "synchronize",
    ]  # fmt: skip
    assert (recording.result, recording.work, recorder.reserved_bytes()) == ("result", work, 5)
    assert calls.streams == ["default"]
    assert not CAPTURING.locked()
    recording.replay()
    assert calls.calls[-1] == "replay"


def test_a_recording_that_fails_leaves_nothing_under_way(calls: _Torch) -> None:
    recorder = CudaRecorder(DEVICE)

    def fault() -> None:
        raise RuntimeError("out of memory\nSome advice.")

    with pytest.raises(RuntimeError, match="previous error") as caught:
        recorder.record(calls.work(fault))
    assert first_line(caught.value) == "out of memory"
    assert (calls.streams, calls.num_open, CAPTURING.locked()) == (["default"], 0, False)
    assert recorder.record(calls.work()).result == "result"


def test_threads_record_one_after_the_other(calls: _Torch) -> None:
    """Both take the lock; that it is held while torch records is checked where it does."""
    found: list[str] = []
    threads = [Thread(target=lambda: found.append(CudaRecorder(DEVICE).record(calls.work()).result)) for _ in range(2)]
    with CAPTURING:
        for thread in threads:
            thread.start()
        assert "begin" not in calls.calls
    for thread in threads:
        thread.join(10)
    assert found == ["result"] * 2
    begun = [call for call in calls.calls if call in ("begin", "end")]
    assert begun == ["begin", "end"] * 2

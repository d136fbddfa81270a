"""The real recorder: CUDA graphs give what direct steps give, share their memory, and mind no other thread."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
import torch
from allroads.cuda.capturing import CAPTURING
from allroads.cuda.graphed_function import GraphedFunction
from allroads.cuda.graphs import CudaRecorder, recorder_on
from allroads.cuda.stream import own_stream
from allroads.engine.runner import Forward, TransformersForward
from allroads.engine.sampling import SamplingParams, recorded_draw, sample
from torch import Tensor
from transformers import PreTrainedModel

from .sampling_reference import PlainRow
from .test_graphs import BothWays, assert_equal, fused, random_model, steps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")
MIB = 1 << 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make_forward", [fused, TransformersForward])
def test_any_schedule_gives_what_direct_steps_give(
    make_forward: Callable[[PreTrainedModel], Forward], dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model("qwen3", device=GPU, dtype=dtype)
    with caplog.at_level(logging.INFO):
        both = BothWays(model, make_forward, CudaRecorder(GPU))
    assert "as graphs" in caplog.text
    with own_stream(GPU, "high")():
        for rows, token_ids in steps(1, 40):
            found, wanted = both.forward(rows, token_ids)
            assert_equal(found, wanted, is_exact=dtype is torch.float32)
    assert both.runner.counts.num_replayed > 20


def test_a_shape_gives_the_same_bits_whatever_was_in_its_memory() -> None:
    both = BothWays(random_model("llama", device=GPU, dtype=torch.bfloat16), fused, CudaRecorder(GPU))
    plan = list(steps(5, 30))
    first = [both.runner.forward(*step).logits.clone() for step in plan]
    again = [both.runner.forward(*step).logits for step in plan]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_draws_are_the_same_as_recordings() -> None:
    recorder = recorder_on(GPU, "auto", "normal")
    assert recorder is not None
    draws = recorded_draw(5000, GPU, recorder, 64)
    for count in (5, 64, 1, 65):
        rows = [PlainRow(SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=seed)) for seed in range(count)]
        logits = 3 * torch.randn(count, 5000, device=GPU)
        assert sample(logits, rows, draws).tolist() == sample(logits, rows).tolist()
    assert isinstance(draws, GraphedFunction)
    assert draws.counts.num_replayed == 3


def _wide(values: Tensor) -> tuple[Tensor, ...]:
    """Takes 64 MiB for 64 rows."""
    wide = values.expand(-1, 1 << 18) * 2
    return (wide.sum(dim=1, keepdim=True),)


def test_recordings_share_one_pool() -> None:
    recorder = CudaRecorder(GPU)
    before = recorder.reserved_bytes()
    function = GraphedFunction("wide", _wide, (torch.zeros((1, 1), device=GPU),), recorder)
    # Nine sizes; the largest alone takes 64 MiB, all of them apart would take about 200.
    assert recorder.reserved_bytes() - before < 130 * MIB
    values = torch.arange(40.0, device=GPU).unsqueeze(1)
    assert torch.equal(function(values)[0], _wide(values)[0])
    assert function.counts.num_replayed == 1


@contextmanager
def _busy_thread() -> Iterator[list[Exception]]:
    """A thread that launches kernels, allocates, uploads and waits, as another service of the process would."""
    faults: list[Exception] = []
    under_way, stop = Event(), Event()

    def work() -> None:
        try:
            with own_stream(GPU, "normal")():
                size = 0
                while not stop.is_set():
                    size = size % 64 + 1
                    matrix = torch.ones((size * 16, size * 16), device=GPU)
                    number = torch.tensor([size], pin_memory=True).to(GPU, non_blocking=True)
                    assert float((matrix @ matrix).mean()) * int(number) == size * size * 16
                    with CAPTURING:
                        torch.cuda.synchronize()
                    under_way.set()
        except Exception as error:  # told to the test
            faults.append(error)
            under_way.set()

    thread = Thread(target=work)
    thread.start()
    assert under_way.wait(30)
    yield faults
    stop.set()
    thread.join(30)


def test_recording_while_another_thread_uses_the_device() -> None:
    with _busy_thread() as faults:
        both = BothWays(random_model("llama", device=GPU), fused, CudaRecorder(GPU))
        assert both.runner.num_recorded
        for rows, token_ids in steps(3, 10):
            assert_equal(*both.forward(rows, token_ids))
    assert not faults


def test_two_threads_replay_side_by_side() -> None:
    """Each has a recorder of its own, so neither writes into what the other computes."""
    wrong: list[int] = []

    def replay(offset: int) -> None:
        function = GraphedFunction("wide", _wide, (torch.zeros((1, 1), device=GPU),), CudaRecorder(GPU))
        with own_stream(GPU, "normal")():
            values = torch.arange(offset, offset + 64.0, device=GPU).unsqueeze(1)
            wanted = _wide(values)[0]
            wrong.extend(number for number in range(50) if not torch.equal(function(values)[0], wanted))

    threads = [Thread(target=replay, args=(offset,)) for offset in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_what_cannot_be_recorded_is_refused_and_all_else_goes_on() -> None:
    recorder = CudaRecorder(GPU)
    values = torch.arange(4.0, device=GPU)
    good = recorder.record(lambda: values * 2)
    stream = torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        recorder.record(lambda: values * values.sum().item())
    assert torch.cuda.current_stream() == stream
    another = recorder.record(lambda: values + 1)
    for recording, wanted in ((good, [0, 2, 4, 6]), (another, [1, 2, 3, 4])):
        recording.replay()
        assert recording.result.tolist() == wanted

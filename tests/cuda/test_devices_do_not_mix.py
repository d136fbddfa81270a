"""An engine on a GPU that computes nothing: all tensors of an operation are on one device, and a step waits once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import allroads.engine.execution as execution_module
import pytest
import torch
from allroads.config import ModelSettings
from allroads.engine.attention import AttentionBackend, KvShape
from allroads.engine.engine import Engine
from allroads.engine.grammar import Grammar
from allroads.engine.loading import load_model
from allroads.engine.runner import Forward, ModelRunner
from allroads.engine.sampling import SamplingParams
from allroads.engine.sdpa_attention import SdpaBackend
from allroads.engine.sequence import Sequence
from allroads.engine.step import Step

from ..doubles.imaginary_gpu import GPU, ImaginaryGpu, imaginary_gpu, move
from ..doubles.tiny_pair import write_tiny_pair

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="needs a torch that is built with CUDA")


class ImaginaryDevice:
    torch_device = GPU
    recorder = None

    def memory_bytes(self) -> int:
        return 1 << 40

    def attention(self, shape: KvShape, **settings: Any) -> SdpaBackend:
        return SdpaBackend(shape, **settings, device=GPU)

    def runner(self, forward: Forward, backend: AttentionBackend, num_tokens: int) -> ModelRunner:
        return ModelRunner(forward, backend, num_tokens, GPU)

    def describe(self) -> str:
        return "imaginary"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    write_tiny_pair(directory)
    return directory / "slm"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImaginaryGpu]:
    with imaginary_gpu(monkeypatch) as entered:
        yield entered


@pytest.fixture
def engine(path: Path, gpu: ImaginaryGpu, monkeypatch: pytest.MonkeyPatch) -> Engine:
    def load(directory: Path, *, dtype: str, **_: object) -> torch.nn.Module:
        return move(load_model(directory, dtype=dtype, device="cpu"))

    monkeypatch.setattr(execution_module, "pick_device", lambda _: ImaginaryDevice())
    monkeypatch.setattr(execution_module, "load_model", load)
    return Engine.load(ModelSettings(path=path, dtype="bfloat16", max_step_tokens=16))


def test_it_finds_tensors_of_two_devices(gpu: ImaginaryGpu) -> None:
    with pytest.raises(Exception, match="same device"):
        torch.ones(3, device=GPU) + torch.ones(3)


def test_it_finds_where_the_host_waits(gpu: ImaginaryGpu) -> None:
    there = torch.ones(3, device=GPU)
    assert there.tolist() == [0.0] * 3
    assert there.argmax().item() == 0
    there[torch.tensor([1])]
    torch.ones(2).to(GPU)
    there.copy_(torch.ones(3))
    assert len(gpu.waits) == 5
    torch.ones(2).to(GPU, non_blocking=True)
    assert len(gpu.waits) == 5


SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "log-probabilities": {"temperature": 0.0, "num_logprobs": 3},
    "drawn": {"temperature": 0.9, "seed": 4, "top_k": 9, "top_p": 0.8, "min_p": 0.01, "num_logprobs": 0},
    "adjusted": {"temperature": 0.7, "repetition_penalty": 1.1, "presence_penalty": 0.2, "logit_bias": ((3, 1.0),)},
    "put off": {"temperature": 0.0, "min_tokens": 9, "stop_token_ids": frozenset({2})},
    "grammar": {"temperature": 0.0, "grammar": Grammar("choice", '["yes", "no"]', frozenset())},
}


@pytest.mark.parametrize("kind", SAMPLING)
def test_a_step_waits_once(engine: Engine, gpu: ImaginaryGpu, kind: str) -> None:
    params = SamplingParams(**SAMPLING[kind])
    sequences = [Sequence([5 + index, 9, 11] * (1 + 2 * index), 60, params, 3 * (1 + 2 * index)) for index in range(3)]
    for sequence in sequences:
        engine.open(sequence)
    while len(admitted := [one for one in sequences if one.slot >= 0]) < len(sequences):
        engine.admit()
    assert admitted == sequences
    for _ in range(6):
        step = _step(engine, gpu)
        for sequence, token_id in zip(step.sequences, step.proposals, strict=True):
            # What reads as zero is no token of the grammar.
            if kind == "grammar":
                sequence.rewind()
            else:
                sequence.append([token_id])
    for sequence in sequences:
        engine.close(sequence)


def test_so_does_one_with_opinions_drafts_and_rollback(engine: Engine, gpu: ImaginaryGpu) -> None:
    params = SamplingParams(temperature=0.8, seed=1)
    one = Sequence([7, 8, 9, 10, 11], 60, params, 2, keeps_hidden_states=True)
    one.opinions_from = 3
    engine.open(one)
    engine.admit()
    assert _step(engine, gpu).opinions[0].start == 3
    one.draft([4, 5, 6])
    (drafted,) = _step(engine, gpu).drafted
    assert drafted.logits.device == GPU
    engine.truncate(one, 6)
    one.rewind()
    assert _step(engine, gpu).sequences == [one]
    engine.close(one)


def _step(engine: Engine, gpu: ImaginaryGpu) -> Step:
    gpu.waits.clear()
    step = engine.step()
    assert step is not None
    assert not step.failed
    assert len(gpu.waits) == 1, gpu.waits
    return step

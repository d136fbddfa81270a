"""What a step chooses is the same whether it comes with others, and is told in one copy."""

from collections.abc import Iterator

import pytest
import torch
from allroads.config import ModelSettings
from allroads.engine.choices import choose
from allroads.engine.engine import Engine
from allroads.engine.logprobs import token_logprobs
from allroads.engine.runner import Output
from allroads.engine.sampling import SamplingParams, sample
from allroads.engine.sequence import Sequence

from ..doubles.tiny_pair import write_tiny_pair

VOCABULARY = 50


def output_of(num_outputs: int, seed: int = 0) -> Output:
    logits = torch.randn(num_outputs, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    return Output.of(logits, torch.zeros(num_outputs, 3))


def row(**params: object) -> Sequence:
    return Sequence([4, 5, 6, 7], 20, SamplingParams(**params), 2)  # type: ignore[arg-type]


PARAMS: tuple[dict[str, object], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "logit_bias": ((9, 50.0),)},
    {"temperature": 0.0, "num_logprobs": 3},
    {"temperature": 0.9, "seed": 11, "num_logprobs": 0},
    {"temperature": 1.0, "seed": 5, "top_k": 7},
)


def test_each_output_gets_what_it_would_get_alone() -> None:
    output = output_of(len(PARAMS) + 2)
    rows = [row(**params) for params in PARAMS]
    choices = choose(output, dict(enumerate(rows)), range(len(rows)))
    for index, one in enumerate(rows):
        alone = output.logits[index : index + 1]
        assert choices.token_ids[index] == sample(alone, [one]).item()
        (logprobs,) = token_logprobs(alone, [one], [choices.token_ids[index]])
        found = choices.logprobs.get(index)
        assert (found is None) == (logprobs is None)
        if found is not None and logprobs is not None:
            assert found.top_token_ids == logprobs.top_token_ids
            assert found.logprob == pytest.approx(logprobs.logprob, abs=1e-6)
            assert found.top_logprobs == pytest.approx(logprobs.top_logprobs, abs=1e-6)
    assert choices.token_ids[-2:] == output.logits[-2:].argmax(dim=-1).tolist()


def test_log_probabilities_are_told_of_written_tokens_only() -> None:
    rows = [row(**PARAMS[2]), row(**PARAMS[2])]
    assert choose(output_of(2), dict(enumerate(rows)), [1]).logprobs.keys() == {1}


@pytest.mark.parametrize("spoil", [float("nan"), float("inf")])
def test_a_row_that_is_not_sound_has_no_token_however_it_is_drawn(spoil: float) -> None:
    output = output_of(4)
    output.logits[1:3, 8] = spoil
    spoilt = Output.of(output.logits, output.hidden_states)
    rows = {index: row(temperature=1.0, seed=3, num_logprobs=2) for index in (0, 1, 3)}
    token_ids = choose(spoilt, rows, rows).token_ids
    assert [token_id < 0 for token_id in token_ids] == [False, True, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_likeliest_is_the_first_of_equals_and_none_where_nothing_can_be_told(dtype: torch.dtype) -> None:
    infinite, nan = float("inf"), float("nan")
    rows = [[1.0, 3.0, 3.0], [-infinite] * 3, [0.0, -infinite, 0.0], [0.0, infinite, 1.0], [nan, 1.0, infinite]]
    logits = torch.tensor(rows, dtype=dtype)
    output = Output.of(logits, torch.zeros(len(rows), 3))
    assert choose(output, {}, ()).token_ids == [1, -1, 0, -1, -1]
    assert output.highest.isfinite().tolist() == [True, False, True, False, False]


@pytest.fixture
def no_waiting_but_counted() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("warn")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.usefixtures("no_waiting_but_counted")
def test_a_step_waits_for_the_gpu_once(tmp_path_factory: pytest.TempPathFactory, params: dict[str, object]) -> None:
    directory = tmp_path_factory.mktemp("pair")
    write_tiny_pair(directory)
    engine = Engine.load(ModelSettings(path=directory / "slm", device="cuda:0", dtype="bfloat16"))
    sequences = [Sequence([3 + index, 8, 9], 30, SamplingParams(**params), 3) for index in range(3)]  # type: ignore[arg-type]
    for sequence in sequences:
        engine.open(sequence)
    engine.admit()
    for _ in range(4):
        with pytest.warns(UserWarning, match="called a synchronizing CUDA operation") as waits:
            step = engine.step()
        assert len(waits) == 1
        assert step is not None
        for sequence, token_id in zip(step.sequences, step.proposals, strict=True):
            sequence.append([token_id])

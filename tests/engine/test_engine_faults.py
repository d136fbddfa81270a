"""What goes wrong with one sequence stays with it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from allroads.config import ModelSettings
from allroads.engine.engine import Engine
from allroads.engine.runner import ModelRunner, Output
from allroads.engine.sdpa_attention import SdpaBackend
from allroads.engine.sequence import Sequence, State
from allroads.errors import CheckpointError, ContextLengthExceeded, Internal, ResourceExhausted, StartupError

from ..doubles.tiny_pair import write_tiny_pair
from .conftest import sequence


def test_nan_in_one_row_fails_that_row_only(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    sequences = [sequence([5 + index, 9, 11]) for index in range(8)]
    for one in sequences:
        engine.open(one)
    engine.admit()
    clean = engine.step()
    assert clean is not None
    for one in sequences:
        one.rewind()
    forward = ModelRunner.forward

    def spoiled(self: ModelRunner, *arguments: object) -> Output:
        output = forward(self, *arguments)  # type: ignore[arg-type]
        output.logits[3, 7] = float("nan")
        return Output.of(output.logits, output.hidden_states)

    monkeypatch.setattr(ModelRunner, "forward", spoiled)
    step = engine.step()
    assert step is not None
    assert step.failed == [sequences[3]]
    assert step.sequences == sequences[:3] + sequences[4:]
    assert step.proposals == clean.proposals[:3] + clean.proposals[4:]


def test_nan_in_the_kv_does_not_reach_the_next_who_gets_the_blocks(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(num_kv_tokens=64, block_size_tokens=16)

    def answer(one: Sequence) -> list[int]:
        engine.open(one)
        engine.admit()
        while one.position < 20:
            step = engine.step()
            assert step is not None
            assert not step.failed
            one.append(step.proposals)
        engine.close(one)
        return one.tokens

    expected = answer(sequence([5, 6, 7], room=50))
    poisoned = sequence([9] * 20, room=40)
    engine.open(poisoned)
    engine.admit()
    engine.step()
    poisoned.append([9])
    assert isinstance(engine._backend, SdpaBackend)
    engine._backend.kv[:] = float("nan")
    step = engine.step()
    assert step is not None
    assert step.failed == [poisoned]
    engine.close(poisoned)
    assert answer(sequence([5, 6, 7], room=50)) == expected


def test_what_can_never_fit_is_refused_at_once_and_others_go_on(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(num_kv_tokens=49 * 16, block_size_tokens=16)
    with pytest.raises(ContextLengthExceeded, match=r"1066 tokens needed, the context window has 784"):
        engine.open(sequence([5] * 1002))
    small = sequence([5] * 10)
    engine.open(small)
    assert engine.admit() == [small]


def test_a_big_one_holds_up_nobody_and_is_not_starved(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(num_kv_tokens=160, block_size_tokens=16)
    first, big = sequence([5] * 16, room=16), sequence([5] * 100, room=44)
    engine.open(first)
    engine.open(big)
    assert engine.admit() == [first]
    for _ in range(200):
        small = sequence([5] * 16, room=16)
        engine.open(small)
        admitted = engine.admit()
        if big in admitted:
            break
        if small not in admitted:
            # Nobody passes any more: the big one is next as soon as its blocks are free.
            engine.close(small)
            engine.close(first)
            assert engine.admit() == [big]
            break
        engine.close(first)
        first = small
    assert big.state is State.RUNNING


def test_the_queue_is_bounded(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(max_waiting=2)
    engine.open(sequence([5]))
    engine.open(sequence([5]))
    with pytest.raises(ResourceExhausted):
        engine.open(sequence([5]))


def test_a_closed_sequence_cannot_be_resumed(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    one = sequence([5])
    engine.open(one)
    engine.admit()
    engine.close(one)
    with pytest.raises(Internal):
        engine.resume(one)
    with pytest.raises(Internal):
        one.truncate(5)


def test_padded_rows_of_the_vocabulary_are_never_proposed(tmp_path: Path) -> None:
    write_tiny_pair(tmp_path, vocab_size={"slm": 600})
    engine = Engine.load(ModelSettings(path=tmp_path / "slm"))
    assert engine.facts.num_output_rows == 600
    one = sequence([5, 6, 7])
    engine.open(one)
    engine.admit()
    for _ in range(40):
        step = engine.step()
        assert step is not None
        assert torch.isinf(step.logits[:, 472:]).all()
        assert step.proposals[0] < 472
        one.append(step.proposals)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "no config.json"),
        (lambda path: (path / "model.safetensors").unlink(), "no \\*.safetensors"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\x00" * 100), "cannot be"),
        (lambda path: (path / "tokenizer.json").write_text("{"), "damaged"),
        (lambda path: (path / "config.json").write_text("[]"), "config"),
    ],
)
def test_damaged_models_are_refused(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    write_tiny_pair(tmp_path)
    damage(tmp_path / "slm")
    with pytest.raises(CheckpointError, match=message):
        Engine.load(ModelSettings(path=tmp_path / "slm"))


def test_a_pool_that_no_memory_holds_is_refused_with_the_numbers(make_engine: Callable[..., Engine]) -> None:
    with pytest.raises(StartupError, match="bytes and the device has") as caught:
        make_engine(num_kv_tokens=1 << 50)
    assert caught.value.field == "num_kv_tokens"

"""Log-probabilities of prompts at a larger tier: those of a whole pass, however the prompt is cut; nothing is kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from allroads.config import ModelSettings
from allroads.engine.engine import Engine
from allroads.engine.logprobs import TokenLogprobs
from allroads.engine.runner import Output
from allroads.errors import AllroadsError, ContextLengthExceeded, InvalidArgument
from allroads.llm.prompts import MAX_PLACES, Answer, LeavePrompt, ReadPrompt
from allroads.llm.tier import Command, Tier, Visit
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2
from allroads.policies.registry import PolicyRegistry
from transformers import AutoModelForCausalLM

from ..doubles.tiny_pair import write_tiny_pair

LENGTHS = (1, 2, 3, MAX_PLACES - 1, MAX_PLACES, MAX_PLACES + 1, MAX_PLACES + 2, 2 * MAX_PLACES + 1, 300)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("prompts")
    write_tiny_pair(directory)
    return directory / "llm"


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = Engine.load(ModelSettings(path=path, max_step_tokens=50))
    yield engine
    assert engine.pool.num_free == engine.pool.num_blocks


@pytest.fixture
def tier(engine: Engine) -> Tier:
    return Tier(engine, PolicyRegistry.load(), lambda _: None)


def prompt_of(length: int) -> tuple[int, ...]:
    return tuple(5 + index * 7 % 300 for index in range(length))


def turn(tier: Tier, *commands: Command) -> None:
    pause_s = tier.turn(list(commands))
    while pause_s == 0:
        pause_s = tier.turn([])


def whole_pass(path: Path, token_ids: tuple[int, ...]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        return torch.as_tensor(model(torch.tensor([token_ids]), use_cache=False).logits[0]).log_softmax(-1)


def entries(answers: list[Answer]) -> list[list[TokenLogprobs]]:
    assert not any(isinstance(answer, AllroadsError) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, list)]


def test_they_are_those_of_a_whole_pass_however_the_prompt_is_cut(tier: Tier, path: Path) -> None:
    answers: list[Answer] = []
    turn(tier, *(ReadPrompt(prompt_of(length), 3, answers.append) for length in LENGTHS))
    told = {len(answer) + 1: answer for answer in entries(answers)}
    assert sorted(told) == sorted(LENGTHS)
    wanted = whole_pass(path, prompt_of(max(LENGTHS)))
    for length, answer in told.items():
        for index, entry in enumerate(answer):
            token_id = prompt_of(length)[index + 1]
            assert entry.logprob == pytest.approx(float(wanted[index, token_id]), abs=1e-4)
            top = wanted[index].topk(3)
            assert list(entry.top_logprobs) == pytest.approx(top.values.tolist(), abs=1e-4)


def test_a_visit_beside_it_writes_what_it_would_alone(tier: Tier, engine: Engine) -> None:
    delivered: list[model_pb2.VisitResponse] = []
    tier = Tier(engine, PolicyRegistry.load(), lambda responses: delivered.extend(responses.values()))
    visitor = model_pb2.VisitorParams(
        max_length=64, num_prompt_tokens=4, max_tokens=60, sampling=pb.SamplingParams(temperature=0.0)
    )

    def written(number: int, *others: Command) -> list[int]:
        delivered.clear()
        hand_off = model_pb2.HandOff(
            sequence_id=number, visit_number=1, unseen_token_ids=[5, 6, 7, 8], max_tokens=20, visitor=visitor
        )
        turn(tier, Visit(1, model_pb2.VisitRequest(hand_offs=[hand_off])), *others)
        turn(tier, Visit(1, model_pb2.VisitRequest(closed_sequence_ids=[number])))
        return [token_id for response in delivered for token_id in response.token_ids]

    answers: list[Answer] = []
    alone = written(1)
    assert written(2, ReadPrompt(prompt_of(300), 0, answers.append)) == alone
    assert len(entries(answers)[0]) == 299


def test_what_nobody_waits_for_is_freed(tier: Tier, engine: Engine) -> None:
    answers: list[Answer] = []
    prompt = ReadPrompt(prompt_of(300), 1, answers.append)
    tier.turn([prompt])
    assert engine.pool.num_free < engine.pool.num_blocks
    turn(tier, LeavePrompt(prompt), LeavePrompt(prompt))
    assert answers == []


def test_what_cannot_be_read_is_told(tier: Tier, engine: Engine) -> None:
    answers: list[Answer] = []
    for token_ids, num_logprobs in (((), 0), ((10**6,), 0), ((5, 6), 21), (prompt_of(engine.facts.max_context + 1), 0)):
        turn(tier, ReadPrompt(token_ids, num_logprobs, answers.append))
    assert [type(answer) for answer in answers] == [*[InvalidArgument] * 3, ContextLengthExceeded]


def test_nan_ends_the_prompt_only(tier: Tier, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Answer] = []
    forward = engine._runner.forward

    def broken(rows: list, token_ids: list[int]):  # type: ignore[no-untyped-def, type-arg]
        output = forward(rows, token_ids)
        return Output.of(output.logits * float("nan"), output.hidden_states)

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "forward", broken)
        turn(tier, ReadPrompt(prompt_of(300), 0, answers.append))
    turn(tier, ReadPrompt(prompt_of(9), 0, answers.append))
    first, second = answers
    assert isinstance(first, AllroadsError)
    assert first.code == "not_a_number"
    assert isinstance(second, list)
    assert len(second) == 8

"""Hand-offs at a larger tier, without a wire: what it knows, what it writes, what it refuses."""

from pathlib import Path

import pytest
from allroads.config import ModelSettings
from allroads.engine.engine import Engine
from allroads.engine.runner import ModelRunner, Output
from allroads.llm.tier import Responses, StreamClosed, Tier, Visit
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2
from allroads.policies.registry import PolicyRegistry

from ..doubles.tiny_pair import write_tiny_pair

PROMPT = [5, 6, 7, 8]


class Bench:
    """A tier, and the last response to stream 1."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.delivered: list[model_pb2.VisitResponse] = []
        self.tier = Tier(engine, PolicyRegistry.load(), self._deliver)

    def _deliver(self, responses: Responses) -> None:
        self.delivered += responses.values()

    def visit(self, *hand_offs: model_pb2.HandOff, closed: tuple[int, ...] = ()) -> list[model_pb2.VisitResponse]:
        """Send a message and turn until nothing is left to do."""
        self.delivered.clear()
        request = model_pb2.VisitRequest(hand_offs=hand_offs, closed_sequence_ids=closed)
        pause_s = self.tier.turn([Visit(1, request)])
        while pause_s == 0:
            pause_s = self.tier.turn([])
        return self.delivered

    def written(self, *hand_offs: model_pb2.HandOff) -> list[int]:
        return [token for response in self.visit(*hand_offs) for token in response.token_ids]

    @property
    def all_free(self) -> bool:
        return self.engine.pool.num_free == self.engine.pool.num_blocks


@pytest.fixture(scope="session")
def llm_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llm")
    write_tiny_pair(directory)
    return directory / "llm"


@pytest.fixture
def bench(llm_path: Path) -> Bench:
    return Bench(Engine.load(ModelSettings(path=llm_path)))


def _open(number: int, *, max_tokens: int = 1, max_length: int = 64, visit: int = 1) -> model_pb2.HandOff:
    return model_pb2.HandOff(
        sequence_id=number,
        unseen_token_ids=PROMPT,
        max_tokens=max_tokens,
        visit_number=visit,
        visitor=model_pb2.VisitorParams(
            max_length=max_length, num_prompt_tokens=4, sampling=pb.SamplingParams(temperature=0)
        ),
    )


def test_a_return_visit_brings_only_unseen_tokens(bench: Bench) -> None:
    whole = bench.written(_open(1, max_tokens=6))
    first = bench.written(_open(2))
    again = bench.written(
        model_pb2.HandOff(sequence_id=2, prefix_length=5, unseen_token_ids=whole[1:4], max_tokens=2, visit_number=2)
    )
    assert first + whole[1:4] + again == whole
    (response, *_) = bench.visit(model_pb2.HandOff(sequence_id=2, prefix_length=10, max_tokens=1, visit_number=3))
    assert response.num_computed_tokens == [1]


def test_a_shorter_prefix_rolls_back(bench: Bench) -> None:
    whole = bench.written(_open(1, max_tokens=6))
    bench.written(_open(2, max_tokens=6))
    assert bench.written(model_pb2.HandOff(sequence_id=2, prefix_length=6, max_tokens=4, visit_number=2)) == whole[2:]


def test_out_of_step_is_told_and_mended_by_sending_everything(bench: Bench) -> None:
    (response,) = bench.visit(model_pb2.HandOff(sequence_id=9, prefix_length=4, max_tokens=1))
    assert response.errors[0].error.code == pb.ERROR_CODE_OUT_OF_STEP
    assert bench.written(_open(9)) == bench.written(_open(10))


def test_a_later_visit_replaces_one_that_goes_on(bench: Bench) -> None:
    bench.tier.turn([Visit(1, model_pb2.VisitRequest(hand_offs=[_open(1, max_tokens=30)]))])
    responses = bench.visit(
        model_pb2.HandOff(sequence_id=1, prefix_length=4, unseen_token_ids=[9], max_tokens=2, visit_number=2)
    )
    visits = {number for response in responses for number in response.visit_numbers}
    assert visits == {2}
    assert [flag for response in responses for flag in response.returned] == [False, True]


def test_closing_frees_everything(bench: Bench) -> None:
    bench.visit(_open(1), _open(2), _open(3))
    assert bench.tier.num_visitors == 3
    bench.visit(closed=(1, 2, 77))
    bench.tier.turn([StreamClosed(1)])
    assert bench.all_free
    assert bench.tier.num_visitors == 0


def test_a_request_that_ends_in_the_turn_it_is_handed_off_leaves_nothing(bench: Bench) -> None:
    assert not bench.visit(_open(1), _open(2, max_tokens=3), closed=(1, 2))
    assert bench.tier.num_visitors == 0
    assert bench.all_free


@pytest.mark.parametrize(
    "wrong",
    [
        model_pb2.HandOff(sequence_id=1, max_tokens=1),
        model_pb2.HandOff(
            sequence_id=1,
            unseen_token_ids=[5],
            max_tokens=1,
            num_opinions_wanted=2,
            visitor=model_pb2.VisitorParams(max_length=9),
        ),
        model_pb2.HandOff(
            sequence_id=1, unseen_token_ids=[472], max_tokens=1, visitor=model_pb2.VisitorParams(max_length=9)
        ),
        model_pb2.HandOff(
            sequence_id=1, unseen_token_ids=[5] * 9, max_tokens=1, visitor=model_pb2.VisitorParams(max_length=9)
        ),
        model_pb2.HandOff(
            sequence_id=1, unseen_token_ids=[5], max_tokens=1, visitor=model_pb2.VisitorParams(max_length=1 << 30)
        ),
        model_pb2.HandOff(
            sequence_id=1,
            unseen_token_ids=[5],
            max_tokens=1,
            visitor=model_pb2.VisitorParams(max_length=9, sampling=pb.SamplingParams(temperature=-1)),
        ),
    ],
)
def test_a_wrong_hand_off_fails_alone(wrong: model_pb2.HandOff, bench: Bench) -> None:
    expected = bench.written(_open(5, max_tokens=3))
    bench.visit(closed=(5,))
    responses = bench.visit(wrong, _open(2, max_tokens=3))
    assert [error.sequence_id for response in responses for error in response.errors] == [1]
    assert [token for response in responses for token in response.token_ids] == expected
    bench.visit(closed=(2,))
    assert bench.all_free


def test_nan_ends_that_visit_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = ModelRunner.forward

    def spoiled(self: ModelRunner, *arguments: object) -> Output:
        output = forward(self, *arguments)  # type: ignore[arg-type]
        output.logits[1] = float("nan")
        return Output.of(output.logits, output.hidden_states)

    monkeypatch.setattr(ModelRunner, "forward", spoiled)
    (response,) = bench.visit(_open(1), _open(2), _open(3))
    assert [(e.sequence_id, e.error.code) for e in response.errors] == [(2, pb.ERROR_CODE_NOT_A_NUMBER)]
    assert list(response.sequence_ids) == [1, 3]

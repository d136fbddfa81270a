"""When a tier launches: what homes wish, whom it waits for, and what it tells of its steps (C40)."""

from pathlib import Path

import pytest
from allroads.config import CatchUp, ModelSettings
from allroads.engine.engine import Engine
from allroads.engine.thread import IDLE_S
from allroads.llm.tier import Command, Responses, StreamClosed, Tier, Visit
from allroads.mesh.regions import boot_id
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2
from allroads.policies.registry import PolicyRegistry

from ..doubles.tiny_pair import write_tiny_pair

FLUSH_US = 50_000
FLUSH_S = FLUSH_US / 1e6


@pytest.fixture(scope="module")
def llm_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llm")
    write_tiny_pair(directory)
    return directory / "llm"


class Bench:
    """A tier whose batches wait by a clock of our own, and what it said last."""

    def __init__(self, path: Path, *, catch_up: CatchUp = "off", **settings: int) -> None:
        self.now_s = 100.0
        self.num_turns = 0
        self.engine = Engine.load(
            ModelSettings.model_validate({"path": path, **settings}), catch_up=catch_up, clock=lambda: self.now_s
        )
        self.said: list[tuple[int, model_pb2.VisitResponse]] = []
        self.tier = Tier(self.engine, PolicyRegistry.load(), self._deliver)

    def _deliver(self, responses: Responses) -> None:
        self.said += responses.items()

    def turn(self, *commands: Command) -> float:
        """Turn until the tier would sleep; for how long it would."""
        pause_s = self.tier.turn(list(commands))
        self.num_turns += 1
        while pause_s == 0:
            pause_s = self.tier.turn([])
            self.num_turns += 1
        return pause_s

    def reserve(self, *numbers: int) -> None:
        self.turn(_visit(*(_opening(number, 0) for number in numbers)))

    def wish(self, num_visits: int, flush_us: int = FLUSH_US, *, stream: int = 1, tier: int = 1) -> float:
        launch = model_pb2.LaunchThreshold(tier=tier, num_visits=num_visits, flush_timeout_us=flush_us)
        return self.turn(Visit(stream, model_pb2.VisitRequest(launch=launch)))

    def written(self) -> dict[int, list[int]]:
        """Tokens by sequence, of everything said since the last call."""
        tokens: dict[int, list[int]] = {}
        for _, response in self.said:
            rest = list(response.token_ids)
            for number, count in zip(response.sequence_ids, response.num_tokens, strict=True):
                tokens.setdefault(number, []).extend(rest[:count])
                del rest[:count]
        self.said.clear()
        return tokens

    @property
    def threshold(self) -> int:
        return self.engine.scheduler.gate.threshold


def _visit(*hand_offs: model_pb2.HandOff, stream: int = 1, closed: tuple[int, ...] = ()) -> Visit:
    return Visit(stream, model_pb2.VisitRequest(hand_offs=hand_offs, closed_sequence_ids=closed))


def _opening(number: int, max_tokens: int, *, num_prompt: int = 4) -> model_pb2.HandOff:
    prompt = [5 + (number + index) % 400 for index in range(num_prompt)]
    return model_pb2.HandOff(
        sequence_id=number,
        unseen_token_ids=prompt,
        max_tokens=max_tokens,
        visit_number=1,
        visitor=model_pb2.VisitorParams(
            max_length=num_prompt + 60, num_prompt_tokens=num_prompt, sampling=pb.SamplingParams(temperature=0)
        ),
    )


def _back(number: int, *, max_tokens: int = 1, prefix: int = 4) -> model_pb2.HandOff:
    return model_pb2.HandOff(sequence_id=number, prefix_length=prefix, max_tokens=max_tokens, visit_number=2)


def test_a_batch_is_launched_together(llm_path: Path) -> None:
    bench = Bench(llm_path)
    bench.reserve(1, 2, 3, 4)
    bench.wish(3)
    bench.said.clear()
    for number in (1, 2):
        assert bench.turn(_visit(_back(number))) == pytest.approx(FLUSH_S)
        assert not bench.said
    assert bench.turn(_visit(_back(3))) == IDLE_S
    (message,) = [response for _, response in bench.said]
    assert sorted(message.sequence_ids) == [1, 2, 3]
    assert list(message.steps.num_rows) == [3]


def test_one_request_alone_waits_for_nobody(llm_path: Path) -> None:
    bench = Bench(llm_path)
    bench.wish(8)
    assert bench.turn(_visit(_opening(1, 5))) == IDLE_S
    assert len(bench.written()[1]) == 5
    assert bench.engine.scheduler.gate.num_last == 5


def test_the_last_ones_final_token_waits_for_nobody(llm_path: Path) -> None:
    bench = Bench(llm_path)
    bench.wish(8)
    bench.turn(_visit(_opening(1, 1), _opening(2, 2)))
    assert {number: len(tokens) for number, tokens in bench.written().items()} == {1: 1, 2: 1}
    # The other one could come back, until it is over.
    assert bench.turn(_visit(closed=(1,))) == IDLE_S
    assert len(bench.written()[2]) == 1


def test_seven_of_which_three_finish_early(llm_path: Path) -> None:
    bench = Bench(llm_path)
    bench.reserve(*range(1, 8))
    bench.wish(8)
    bench.said.clear()
    assert bench.turn(_visit(*map(_back, (1, 2, 3, 4)))) == pytest.approx(FLUSH_S)
    assert bench.turn(_visit(closed=(5, 6))) == pytest.approx(FLUSH_S)
    assert not bench.said
    assert bench.turn(_visit(closed=(7,))) == IDLE_S
    assert sorted(bench.written()) == [1, 2, 3, 4]


def test_all_at_once_wait_for_nobody(llm_path: Path) -> None:
    bench = Bench(llm_path)
    bench.reserve(*range(1, 8))
    bench.wish(8)
    assert bench.turn(_visit(*map(_back, range(1, 8)))) == IDLE_S
    assert sorted(bench.written()) == list(range(1, 8))


def test_who_stays_alone_waits_for_the_flush_at_each_token_and_nothing_spins(llm_path: Path) -> None:
    bench = Bench(llm_path)
    bench.reserve(1, 2)
    bench.wish(2)
    bench.num_turns, began_s = 0, bench.now_s
    pause_s = bench.turn(_visit(_back(1, max_tokens=5)))
    while pause_s < IDLE_S or bench.engine.held_s is not None:
        bench.now_s += pause_s
        pause_s = bench.turn()
    assert len(bench.written()[1]) == 5
    assert bench.now_s - began_s == pytest.approx(5 * FLUSH_S)
    assert bench.engine.scheduler.gate.num_flushed == 5
    # For each token one turn that holds it, and the one that writes it.
    assert bench.num_turns <= 2 * 5 + 1


def test_a_long_prompt_is_not_held_once_for_each_chunk(llm_path: Path) -> None:
    bench = Bench(llm_path, max_step_tokens=8, shares_prefixes=0)
    bench.reserve(2)
    bench.wish(2)
    bench.said.clear()
    assert bench.turn(_visit(_opening(1, 1, num_prompt=50))) == pytest.approx(FLUSH_S)
    bench.now_s += FLUSH_S
    assert bench.turn() == IDLE_S
    assert bench.engine.scheduler.gate.num_flushed == 1
    (response,) = [response for _, response in bench.said if response.sequence_ids]
    assert list(response.steps.num_rows) == [1] * 7
    assert sum(response.steps.num_positions) == 50


@pytest.mark.parametrize("catch_up", ["idle", "eager"])
def test_while_a_visit_is_held_prompts_are_computed_ahead(catch_up: CatchUp, llm_path: Path) -> None:
    bench = Bench(llm_path, catch_up=catch_up, shares_prefixes=0)
    bench.reserve(1)
    bench.wish(8)
    bench.said.clear()
    ahead = _opening(2, 0, num_prompt=40)
    assert bench.turn(_visit(_back(1), ahead)) == pytest.approx(FLUSH_S)
    assert bench.engine.scheduler.num_running == 2
    bench.now_s += FLUSH_S
    bench.turn()
    steps = [step for _, response in bench.said for step in zip(*_steps(response), strict=True)]
    assert steps == [(0, 39), (1, 1)]


def _steps(response: model_pb2.VisitResponse) -> tuple[list[int], list[int]]:
    return list(response.steps.num_rows), list(response.steps.num_positions)


def test_what_homes_wish_is_in_force_while_their_streams_last(llm_path: Path) -> None:
    bench = Bench(llm_path)
    bench.reserve(1, 2)
    bench.wish(8, stream=1)
    bench.wish(2, 4 * FLUSH_US, stream=2)
    assert bench.threshold == 2
    # The shortest wait is the first one's.
    assert bench.turn(_visit(_back(1))) == pytest.approx(FLUSH_S)
    bench.turn(_visit(_back(2)))
    assert sorted(bench.written()) == [1, 2]
    bench.turn(StreamClosed(2))
    assert bench.threshold == 8
    bench.wish(0, stream=1)
    assert bench.threshold == 1
    bench.wish(8, stream=1)
    bench.turn(StreamClosed(1), StreamClosed(3))
    assert bench.threshold == 1


def test_a_wish_that_cannot_be_is_brought_within_limits(llm_path: Path) -> None:
    bench = Bench(llm_path)
    bench.reserve(1, 2)
    bench.wish(2, tier=3)
    assert bench.threshold == 1, "it was for another tier"
    bench.wish(2, 2**32 - 1)
    assert bench.turn(_visit(_back(1))) == pytest.approx(10.0)
    # No time to wait is not to wait.
    assert bench.wish(2, 0) == IDLE_S
    assert sorted(bench.written()) == [1]


def test_a_threshold_changes_no_token(llm_path: Path) -> None:
    answers = []
    for num_visits in (1, 3):
        bench = Bench(llm_path)
        bench.reserve(*range(1, 6))
        bench.wish(num_visits)
        pause_s = bench.turn(_visit(*(_back(number, max_tokens=3 * number) for number in range(1, 6))))
        while bench.engine.held_s is not None:
            bench.now_s += pause_s
            pause_s = bench.turn()
        answers.append(bench.written())
    assert answers[0] == answers[1]
    assert [len(tokens) for tokens in answers[0].values()] == [3, 6, 9, 12, 15]


def test_steps_and_visits_are_reported(llm_path: Path) -> None:
    bench = Bench(llm_path)
    bench.reserve(1, 2)
    bench.wish(2)
    bench.said.clear()
    bench.turn(_visit(_back(1, max_tokens=2)))
    bench.turn(_visit(_back(2)))
    bench.now_s += FLUSH_S
    bench.turn()
    first, second = [response.steps for _, response in bench.said]
    assert (list(first.num_rows), list(first.num_positions)) == ([2], [8])
    assert (list(second.num_rows), list(second.num_positions)) == ([1], [1])
    assert (first.num_visits, first.num_visit_steps) == (1, 1)
    assert (second.num_visits, second.num_visit_steps) == (1, 2)
    assert (first.boot_id, first.threshold) == (boot_id(), 2)
    causes = [(one.num_full_launches, one.num_last_launches, one.num_flushed_launches) for one in (first, second)]
    assert causes == [(1, 0, 0), (0, 0, 1)]
    # The first visit waited for the second, whose arrival let the step begin.
    assert first.waited_us == 0
    assert 0 < second.waited_us < second.there_us
    assert second.started_ns[0] >= first.started_ns[0] + 1000 * first.step_us[0]


def test_a_visit_is_told_to_the_home_whose_it_was(llm_path: Path) -> None:
    bench = Bench(llm_path)
    bench.turn(_visit(_opening(1, 1)), _visit(_opening(1, 2), stream=2))
    told = [(stream, response.steps) for stream, response in bench.said]
    assert sorted((stream, list(steps.num_rows), steps.num_visits) for stream, steps in told) == [
        (1, [2], 1),
        (2, [1], 1),
        (2, [2], 0),
    ]


def test_of_many_steps_the_newest_are_told(llm_path: Path) -> None:
    bench = Bench(llm_path, catch_up="idle", max_step_tokens=8, shares_prefixes=0, num_kv_tokens=1024)
    bench.turn(_visit(_opening(1, 0, num_prompt=800)))
    bench.said.clear()
    bench.turn(_visit(_opening(2, 1)))
    (response,) = [response for _, response in bench.said]
    assert len(response.steps.num_rows) == 64
    assert list(response.steps.num_rows[-2:]) == [0, 1]

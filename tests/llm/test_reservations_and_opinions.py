"""Visits that write nothing, and what the large model thinks of what it is shown."""

import json
from pathlib import Path

import pytest
from allroads.config import CatchUp, ModelSettings
from allroads.engine.engine import Engine
from allroads.errors import StartupError
from allroads.llm.opinion_log import OpinionLog
from allroads.llm.tier import Tier, Visit
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2
from allroads.policies.registry import PolicyRegistry

from ..doubles.tiny_pair import write_tiny_pair

PROMPT = list(range(5, 45))


@pytest.fixture(scope="module")
def llm_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llm")
    write_tiny_pair(directory)
    return directory / "llm"


class Bench:
    def __init__(
        self, path: Path, *, catch_up: CatchUp = "idle", log: OpinionLog | None = None, **settings: int
    ) -> None:
        self.engine = Engine.load(ModelSettings.model_validate({"path": path, **settings}), catch_up=catch_up)
        self.delivered: list[model_pb2.VisitResponse] = []
        self.tier = Tier(
            self.engine,
            PolicyRegistry.load(),
            lambda responses: self.delivered.extend(responses.values()),
            opinion_log=log,
        )

    def visit(self, *hand_offs: model_pb2.HandOff, closed: tuple[int, ...] = ()) -> list[model_pb2.VisitResponse]:
        self.delivered.clear()
        request = model_pb2.VisitRequest(hand_offs=hand_offs, closed_sequence_ids=closed)
        pause_s = self.tier.turn([Visit(1, request)])
        while pause_s == 0:
            pause_s = self.tier.turn([])
        return list(self.delivered)

    def written(self, *hand_offs: model_pb2.HandOff) -> list[int]:
        return [token for response in self.visit(*hand_offs) for token in response.token_ids]


def _opening(number: int, max_tokens: int, prompt: list[int] | None = None) -> model_pb2.HandOff:
    return model_pb2.HandOff(
        sequence_id=number,
        unseen_token_ids=prompt or PROMPT,
        max_tokens=max_tokens,
        visit_number=1,
        visitor=model_pb2.VisitorParams(
            max_length=64, num_prompt_tokens=len(prompt or PROMPT), sampling=pb.SamplingParams(temperature=0)
        ),
    )


def _back(number: int, prefix: int, unseen: list[int], *, opinions: int = 0, max_tokens: int = 1) -> model_pb2.HandOff:
    return model_pb2.HandOff(
        sequence_id=number, prefix_length=prefix, unseen_token_ids=unseen, max_tokens=max_tokens, visit_number=2,
        num_opinions_wanted=opinions,
    )  # fmt: skip


@pytest.mark.parametrize(("catch_up", "num_ahead"), [("off", 0), ("idle", len(PROMPT) - 1), ("eager", len(PROMPT) - 1)])
def test_a_reservation_writes_nothing_and_may_compute_ahead(catch_up: CatchUp, num_ahead: int, llm_path: Path) -> None:
    bench = Bench(llm_path, catch_up=catch_up, shares_prefixes=0)
    (response,) = bench.visit(_opening(1, 0))
    assert list(response.admitted_sequence_ids) == [1]
    assert not response.token_ids
    (computed,) = [one.num_computed for one in bench.tier._by_sequence]
    assert computed == num_ahead
    expected = bench.written(_opening(2, 3))
    assert bench.written(_back(1, len(PROMPT), [], max_tokens=3)) == expected
    bench.visit(closed=(1, 2))
    assert bench.engine.pool.num_free == bench.engine.pool.num_blocks


def test_whoever_has_work_comes_before_what_is_ahead(llm_path: Path) -> None:
    bench = Bench(llm_path, max_step_tokens=8, shares_prefixes=0)
    request = model_pb2.VisitRequest(hand_offs=[_opening(1, 0), _opening(2, 5, [9, 10, 11])])
    bench.tier.turn([Visit(1, request)])
    ahead, visited = bench.tier._by_sequence
    while len(visited) < 8:
        assert ahead.num_computed == 0
        assert bench.tier.turn([]) == 0
    while bench.tier.turn([]) == 0:
        pass
    assert ahead.num_computed == len(PROMPT) - 1


def test_a_second_reservation_waits_for_the_first_to_be_closed(llm_path: Path) -> None:
    bench = Bench(llm_path, num_kv_tokens=64)
    (first,) = bench.visit(_opening(1, 0))
    assert not bench.visit(_opening(2, 0))
    (second,) = bench.visit(closed=(1,))
    assert (list(first.admitted_sequence_ids), list(second.admitted_sequence_ids)) == ([1], [2])
    assert list(second.num_cached_tokens) == [32], "the first prompt's whole blocks are still there"


def test_opinions_are_what_it_would_have_written(llm_path: Path) -> None:
    bench = Bench(llm_path)
    own = bench.written(_opening(1, 6))
    bench.visit(_opening(2, 1))
    wrong = (own[3] + 1) % 472
    (response,) = bench.visit(_back(2, len(PROMPT) + 1, [*own[1:3], wrong], opinions=3))
    assert (list(response.num_opinions), list(response.num_agreed_opinions)) == ([3], [2])
    # Told once.
    (response,) = bench.visit(_back(2, len(PROMPT) + 5, [7]))
    assert list(response.num_opinions) == [0]


def test_opinions_are_kept_as_labels(llm_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "opinions.jsonl"
    bench = Bench(llm_path, log=OpinionLog(path), max_step_tokens=2)
    own = bench.written(_opening(1, 6))
    bench.visit(_opening(2, 1))
    unseen = [*own[1:3], 9, 10, 11]
    answer = bench.written(_back(2, len(PROMPT) + 1, unseen, opinions=5))
    bench.visit(_back(2, len(PROMPT) + 7, [30], opinions=1))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["sequence"] for line in lines}) == 1
    tokens: list[int] = []
    for line in lines:
        tokens += line["tokens"]
        assert len(line["large"]) <= len(tokens)
    assert tokens == [*PROMPT, own[0], *unseen, *answer, 30]
    assert sum(len(line["large"]) for line in lines) == 6
    assert [token for line in lines for token in line["large"]][:3] == own[1:4]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"llm\.opinions_path"):
        OpinionLog(tmp_path / "missing" / "opinions.jsonl")

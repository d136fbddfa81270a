"""A home and a larger tier in one thread, without a wire: launch thresholds on their way, and reports back."""

from collections import deque
from pathlib import Path

import pytest
import torch
from allroads.config import HomeSettings, ModelSettings
from allroads.engine.engine import Engine
from allroads.errors import AllroadsError, Unavailable
from allroads.llm.service import _read_draft_logits
from allroads.llm.tier import Responses, Tier, Visit
from allroads.mesh.tensor_receiver import TensorReceiver
from allroads.mesh.tensor_sender import TensorSender
from allroads.mesh.wire import model_pb2
from allroads.policies.registry import PolicyRegistry
from allroads.slm.commands import Command, Open, StreamClosed, TierDown, TierUp, Visited, WishLaunches
from allroads.slm.decisions import Decisions
from allroads.slm.home import Home
from allroads.slm.outbound import Outbound
from allroads.slm.scoring import ScoreBook
from allroads.slm.tensors_out import TensorsOut

from ..doubles.home_client import request
from ..doubles.tiny_pair import write_tiny_pair

TIER_UP = TierUp(1, 4096, frozenset({2}))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    write_tiny_pair(directory)
    return directory


class Bench:
    def __init__(self, pair: Path) -> None:
        policies = PolicyRegistry.load()
        settings = HomeSettings(path=pair / "slm", policy="entropy")
        engine = Engine.load(settings)
        sender = TensorSender("llm", slot_bytes=1024)
        self.decisions = Decisions.of(settings, policies.get("entropy"))
        self.decisions.is_open = True
        self.home = Home(
            engine,
            policies,
            settings,
            ScoreBook(TensorSender("router", slot_bytes=1024)),
            TensorsOut({1: sender}, len(engine.facts.vocabulary)),
            self.decisions,
            num_tiers=2,
            deliver=self._from_home,
        )
        self.tier = Tier(Engine.load(ModelSettings(path=pair / "llm")), policies, self._from_tier)
        self.commands: deque[Command] = deque([TIER_UP])
        self.visits: list[model_pb2.VisitRequest] = []
        self.num_to_lose = 0
        """Hand-offs whose draft logits come too late."""
        self.told: list[model_pb2.GenerateResponse] = []

    def _from_home(self, out: Outbound) -> None:
        self.visits += out.visits.values()
        self.told += out.clients.values()

    def _from_tier(self, responses: Responses) -> None:
        self.commands += [Visited(1, response) for response in responses.values()]

    def turn(self, *commands: Command) -> list[model_pb2.VisitRequest]:
        """A turn of the home; what it says to the tier."""
        self.visits.clear()
        self.home.turn([*self.commands, *commands])
        self.commands.clear()
        return list(self.visits)

    def arrive(self, visit: model_pb2.VisitRequest) -> Visit:
        """What comes of the home's message at the tier."""
        logits = _read_draft_logits(TensorReceiver("home"), visit, [])
        for index in logits:
            if self.num_to_lose:
                self.num_to_lose -= 1
                logits[index] = torch.full_like(_tensor(logits[index]), torch.nan)
        return Visit(1, visit, logits)

    def answers(self, *opens: model_pb2.OpenRequest) -> dict[int, list[int]]:
        """Tokens of requests, by number, when all have ended."""
        pending = [Open(1, wire) for wire in opens]
        while pending or self.home.num_requests:
            visits = self.turn(*pending)
            pending = []
            self.tier.turn([self.arrive(visit) for visit in visits])
        self.turn()
        tokens: dict[int, list[int]] = {}
        for response in self.told:
            rest = list(response.token_ids)
            for number, count in zip(response.sequence_ids, response.num_tokens, strict=True):
                tokens.setdefault(number, []).extend(rest[:count])
                del rest[:count]
        return tokens


def _tensor(read: torch.Tensor | AllroadsError) -> torch.Tensor:
    assert isinstance(read, torch.Tensor)
    return read


@pytest.fixture
def bench(pair: Path) -> Bench:
    return Bench(pair)


def _wish(num_visits: int, stream_id: int = 1, tier: int = 1) -> WishLaunches:
    launch = model_pb2.LaunchThreshold(tier=tier, num_visits=num_visits, flush_timeout_us=5_000)
    return WishLaunches(stream_id, [launch])


def _told(visits: list[model_pb2.VisitRequest]) -> list[int]:
    return [visit.launch.num_visits for visit in visits if visit.HasField("launch")]


def test_a_wish_is_forwarded_told_again_and_forgotten(bench: Bench) -> None:
    assert not bench.turn()
    assert _told(bench.turn(_wish(4), _wish(9, tier=2))) == [4]
    assert not bench.turn(_wish(4), _wish(6, stream_id=2))
    assert not bench.turn(TierDown(1, Unavailable("gone")), _wish(3))
    assert _told(bench.turn(TIER_UP)) == [3]
    assert _told(bench.turn(StreamClosed(1))) == [6]
    assert _told(bench.turn(StreamClosed(2))) == [1]


def _opens(count: int) -> list[model_pb2.OpenRequest]:
    opens = [
        request([5 + index, 9, 40 + index], "entropy", max_tokens=24, threshold=2.0, ignore_eos=True)
        for index in range(count)
    ]
    for index, wire in enumerate(opens):
        wire.sequence_id = index + 1
    return opens


def test_a_threshold_changes_no_token_and_reports_tell_of_it(pair: Path) -> None:
    at_once = Bench(pair).answers(*_opens(6))
    assert [len(tokens) for tokens in at_once.values()] == [24] * 6
    bench = Bench(pair)
    bench.turn(_wish(4))
    bench.tier.turn([Visit(1, visit) for visit in bench.visits])
    assert bench.answers(*_opens(6)) == at_once
    home, large = ([response.reports[tier] for response in bench.told] for tier in (0, 1))
    tokens = [sum(report.num_tokens for report in reports) for reports in (home, large)]
    assert sum(tokens) == 6 * 24
    # Each visit wrote a token.
    assert sum(report.num_visits for report in large) == tokens[1] > 0
    assert sum(report.num_visit_steps for report in large) == tokens[1]
    assert large[-1].threshold == 4
    assert sum(report.num_full_launches for report in large) > 0
    assert sum(report.num_full_launches + report.num_last_launches + report.num_flushed_launches for report in large)
    assert 0 < sum(report.there_us for report in large) <= sum(report.away_us for report in large)
    assert max(report.num_requests for report in home) <= 6


def test_drafts_whose_logits_are_lost_are_judged_all_the_same(pair: Path) -> None:
    def wire() -> model_pb2.OpenRequest:
        opened = request([5, 9, 40], "speculative", max_tokens=24, temperature=1.0, seed=7, ignore_eos=True)
        opened.sequence_id = 1
        return opened

    plain = Bench(pair).answers(wire())
    bench = Bench(pair)
    bench.num_to_lose = 3
    assert bench.answers(wire()) == plain
    assert bench.num_to_lose == 0
    assert len(plain[1]) == 24


def test_what_comes_before_clients_are_served_counts_for_nothing(bench: Bench) -> None:
    bench.decisions.is_open = False
    assert len(bench.answers(*_opens(2))) == 2
    assert not any(response.reports for response in bench.told)
    bench.decisions.is_open = True
    bench.told.clear()
    bench.answers(*_opens(1))
    assert sum(report.num_tokens for response in bench.told for report in response.reports) == 24

"""What runs ahead, lags, or is shared changes the work, never the answer; and the work is what the setting says."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from allroads.config import load_settings

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.plugin.allroads_scripted import SCHEDULES
from ..doubles.processes import MeshProcesses
from ..doubles.tiny_pair import write_tiny_pair
from ..oracle import Answer, Decide, Oracle, scheduled

NUM_PROMPTS = 24
NUM_REQUIRED = 16
MAX_TOKENS = 40
EOS = frozenset({2})
ROUNDING = 2e-4
THRESHOLDS = {"r2r": 0.5, "entropy": 2.0}
SERVICES = ("slm", "llm", "router")

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "nothing-ahead": {
        "slm": {"max_unjudged": 0, "max_ahead": 0, "shares_prefixes": False},
        "llm": {"catch_up": "off", "opinions": False, "shares_prefixes": False},
    },
    "verdicts-lag": {"slm": {"max_unjudged": 3, "max_ahead": 0}, "llm": {"catch_up": "off"}},
    "hand-offs-lag": {"slm": {"max_unjudged": 0, "max_ahead": 3}, "llm": {"catch_up": "idle"}},
    "everything-ahead": {
        "slm": {"max_unjudged": 6, "max_ahead": 12, "block_size_tokens": 4, "max_step_tokens": 48},
        "llm": {"catch_up": "eager", "block_size_tokens": 64, "max_step_tokens": 48},
    },
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that agree often, so that what was proposed during a hand-off can stay."""
    directory = tmp_path_factory.mktemp("alike")
    write_tiny_pair(directory, likeness=0.9)
    return directory


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(11)
    # Some begin alike, so that KV is shared; some fill whole blocks.
    stem = [rng.randrange(3, 472) for _ in range(70)]
    tails = [[rng.randrange(3, 472) for _ in range(rng.choice([1, 10, 16, 48]))] for _ in range(NUM_PROMPTS)]
    return [stem[: 16 * (index % 4)] + tail for index, tail in enumerate(tails)]


@pytest.fixture(scope="module")
def expected(pair: Path, prompts: list[list[int]]) -> dict[str, list[Answer]]:
    oracle = Oracle(pair)
    rules: dict[str, Decide] = {
        "r2r": oracle.r2r(0.5),
        "entropy": oracle.entropy(2.0),
        "judged-block-edges": scheduled(SCHEDULES["block-edges"]),
        "ahead-alternating": scheduled(SCHEDULES["alternating"]),
        "ahead-runs": scheduled(SCHEDULES["runs"]),
    }
    return {
        policy: oracle.answer(prompts, rule, max_tokens=MAX_TOKENS, stop_token_ids=EOS)
        for policy, rule in rules.items()
    }


@pytest.fixture(scope="module", params=SETTINGS)
def mesh(
    request: pytest.FixtureRequest, pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MeshProcesses]:
    overrides = {name: {"path": str(pair / name), **SETTINGS[request.param].get(name, {})} for name in SERVICES}
    processes = MeshProcesses(load_settings(overrides=overrides), tmp_path_factory.mktemp("m"))
    with processes.running("llm", "router", "slm"):
        yield processes


async def test_answers_are_the_oracles(
    mesh: MeshProcesses, expected: dict[str, list[Answer]], prompts: list[list[int]]
) -> None:
    settings = mesh.settings
    totals = dict.fromkeys(("ahead", "hand_offs", "confirmed", "opinions", "cached"), 0)
    async with HomeClient(settings.slm.address) as client:
        for policy, answers in expected.items():
            sure = [index for index, answer in enumerate(answers) if answer.margin > ROUNDING]
            assert len(sure) >= NUM_REQUIRED
            gate = asyncio.Semaphore(8)
            replies = await asyncio.gather(*(_ask(client, gate, policy, prompts[index]) for index in sure))
            for index, reply in zip(sure, replies, strict=True):
                answer = answers[index]
                assert reply.error is None
                assert reply.token_ids == answer.token_ids
                assert reply.tiers == answer.tiers
                assert reply.finished is not None
                usage = reply.finished.usage
                totals["ahead"] += usage.num_ahead_tokens
                totals["hand_offs"] += usage.num_hand_offs
                totals["confirmed"] += usage.num_confirmed_hand_offs
                totals["cached"] += sum(usage.num_cached_tokens)
                totals["opinions"] += usage.num_opinions
                if settings.llm.opinions and answer.large_margin > ROUNDING:
                    assert (usage.num_opinions, usage.num_agreed_opinions) == _opinions(answer)
    assert totals["hand_offs"] > 100
    assert (totals["ahead"] > 0) == (settings.slm.max_ahead > 0)
    assert (totals["confirmed"] > 0.2 * totals["hand_offs"]) == (settings.slm.max_ahead > 0)
    assert (totals["opinions"] > 0) == settings.llm.opinions
    assert (totals["cached"] > 0) == settings.slm.shares_prefixes


async def _ask(client: HomeClient, gate: asyncio.Semaphore, policy: str, prompt: list[int]) -> Reply:
    async with gate:
        (reply,) = await client.answer(request(prompt, policy, max_tokens=MAX_TOKENS, threshold=THRESHOLDS.get(policy)))
    return reply


def _opinions(answer: Answer) -> tuple[int, int]:
    """The small model's tokens that the large one saw later, and those that it would have written, too."""
    if 1 not in answer.tiers:
        return 0, 0
    last = len(answer.tiers) - 1 - answer.tiers[::-1].index(1)
    seen = [place for place in range(last) if answer.tiers[place] == 0]
    return len(seen), sum(answer.token_ids[place] == answer.large[place] for place in seen)

"""What a lossless mode promises: under greedy the large model's answer, under sampling its distribution."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from allroads.config import load_settings
from allroads.mesh.wire import model_pb2
from transformers import AutoModelForCausalLM, PreTrainedModel

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.processes import MeshProcesses
from ..doubles.tiny_pair import write_tiny_pair

SERVICES = ("slm", "llm", "router")
NUM_DRAWS = 3000
TOP_K = 4
"""So few tokens that the distribution of the answer can be told in full."""
NUM_TOKENS = 2
TEMPERATURE = 2.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that agree often, so that drafts stand and fall."""
    directory = tmp_path_factory.mktemp("alike")
    write_tiny_pair(directory, likeness=0.85, seed=3)
    return directory


@pytest.fixture(scope="module")
def mesh(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    overrides = {name: {"path": str(pair / name)} for name in SERVICES}
    processes = MeshProcesses(load_settings(overrides=overrides), tmp_path_factory.mktemp("m"))
    with processes.running("llm", "router", "slm"):
        yield processes


async def _answers(mesh: MeshProcesses, requests: list[model_pb2.OpenRequest]) -> list[Reply]:
    gate = asyncio.Semaphore(32)
    async with HomeClient(mesh.settings.slm.address) as client:

        async def ask(wire: model_pb2.OpenRequest) -> Reply:
            async with gate:
                (reply,) = await client.answer(wire)
            assert reply.error is None, reply.error
            return reply

        return await asyncio.gather(*map(ask, requests))


def _prompts(count: int) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(3, 472) for _ in range(rng.randint(1, 60))] for _ in range(count)]


@pytest.mark.parametrize("policy", ["lossless", "speculative"])
@pytest.mark.parametrize("adaptive", [0, 1])
async def test_greedy_answers_are_the_large_models(policy: str, adaptive: int, mesh: MeshProcesses) -> None:
    prompts = _prompts(50)
    own = await _answers(mesh, [request(prompt, "llm", max_tokens=40) for prompt in prompts])
    drafted = await _answers(
        mesh, [request(prompt, policy, max_tokens=40, adaptive=adaptive, draft_tokens=6) for prompt in prompts]
    )
    assert [reply.token_ids for reply in drafted] == [reply.token_ids for reply in own]
    usages = [reply.finished.usage for reply in drafted if reply.finished is not None]
    num_drafts = sum(usage.num_drafts for usage in usages)
    num_accepted = sum(usage.num_accepted_drafts for usage in usages)
    assert 0.1 * num_drafts < num_accepted < 0.95 * num_drafts, "drafts should stand and fall"
    for reply, usage in zip(drafted, usages, strict=True):
        assert list(usage.num_committed_tokens) == [reply.tiers.count(0), reply.tiers.count(1)]
        assert usage.num_committed_tokens[0] == usage.num_accepted_drafts


async def test_lossless_draws_the_large_models_tokens(mesh: MeshProcesses) -> None:
    sampled = {"temperature": 1.0, "max_tokens": 30}
    prompts = _prompts(40)
    answers = {
        policy: await _answers(
            mesh,
            [request(p, policy, seed=seed, **sampled) for seed, p in enumerate(prompts)],  # type: ignore[arg-type]
        )
        for policy in ("llm", "lossless", "slm")
    }
    texts = {policy: [reply.token_ids for reply in replies] for policy, replies in answers.items()}
    assert texts["lossless"] == texts["llm"]
    assert texts["slm"] != texts["llm"]
    assert any(0 in reply.tiers for reply in answers["lossless"])


async def test_draft_length_follows_acceptance(mesh: MeshProcesses) -> None:
    """Where many drafts fall they get shorter, and less is drafted in vain."""
    prompts = _prompts(12)
    wasted = {}
    for adaptive in (0, 1):
        replies = await _answers(
            mesh,
            [
                request(p, "lossless", max_tokens=60, ignore_eos=True, adaptive=adaptive, draft_tokens=16)
                for p in prompts
            ],
        )
        usages = [reply.finished.usage for reply in replies if reply.finished is not None]
        wasted[adaptive] = sum(u.num_drafts - u.num_accepted_drafts for u in usages)
        assert sum(u.num_drafts for u in usages) > sum(u.num_hand_offs for u in usages)
    assert wasted[1] < 0.8 * wasted[0]


Models = dict[str, PreTrainedModel]
Distribution = dict[tuple[int, ...], float]


@pytest.fixture(scope="module")
def models(pair: Path) -> Models:
    names = ("slm", "llm")
    return {name: AutoModelForCausalLM.from_pretrained(pair / name, dtype=torch.float32).eval() for name in names}


@pytest.fixture(scope="module")
def prompt(models: Models) -> list[int]:
    """One at which the models are of different minds, and neither is sure."""
    for prompt in _prompts(200):
        if 0.2 < _distance(*(_exact(models[name], prompt) for name in ("slm", "llm"))) < 0.5:
            return prompt
    raise AssertionError("no such prompt")


def _distance(one: Distribution, other: Distribution) -> float:
    """Total variation."""
    return sum(abs(one.get(answer, 0.0) - other.get(answer, 0.0)) for answer in {*one, *other}) / 2


def _exact(model: PreTrainedModel, prompt: list[int]) -> Distribution:
    """The probability of each answer of `NUM_TOKENS` tokens, by the definition of top-k sampling."""
    answers: Distribution = {(): 1.0}
    for _ in range(NUM_TOKENS):
        longer: Distribution = {}
        for answer, probability in answers.items():
            with torch.inference_mode():
                logits = model(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0, -1].double()
            top = logits.topk(TOP_K)
            weights = (top.values / TEMPERATURE).softmax(dim=-1)
            for token_id, weight in zip(top.indices.tolist(), weights.tolist(), strict=True):
                longer[(*answer, token_id)] = probability * weight
        answers = longer
    return answers


def _excess(counts: Counter[tuple[int, ...]], expected: Distribution) -> float:
    """Pearson's statistic, in standard deviations of its own distribution; inf where what cannot be was drawn."""
    if any(answer not in expected for answer in counts):
        return math.inf
    total = sum(counts.values())
    cells = {answer: p * total for answer, p in expected.items() if p * total >= 5}
    rare = total - sum(cells.values())
    statistic = sum((counts[answer] - count) ** 2 / count for answer, count in cells.items())
    num_cells = len(cells)
    if rare >= 5:
        drawn = total - sum(counts[answer] for answer in cells)
        statistic += (drawn - rare) ** 2 / rare
        num_cells += 1
    freedom = num_cells - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("policy", ["speculative", "lossless"])
async def test_sampled_answers_follow_the_large_models_distribution(
    policy: str, models: Models, prompt: list[int], mesh: MeshProcesses
) -> None:
    wires = []
    for seed in range(NUM_DRAWS):
        wire = request(prompt, policy, max_tokens=NUM_TOKENS, temperature=TEMPERATURE, seed=seed, ignore_eos=True)
        wire.sampling.top_k = TOP_K
        wires.append(wire)
    replies = await _answers(mesh, wires)
    counts = Counter(tuple(reply.token_ids) for reply in replies)
    tiers = Counter(tier for reply in replies for tier in reply.tiers)
    assert min(tiers[0], tiers[1]) > 0.1 * NUM_DRAWS, "both models should write"
    large, small = _exact(models["llm"], prompt), _exact(models["slm"], prompt)
    assert _excess(counts, large) < 5
    # The draws are enough to tell the two models apart, and a little of one from none.
    assert _excess(counts, small) > 20
    blend = {answer: 0.8 * large.get(answer, 0.0) + 0.2 * small.get(answer, 0.0) for answer in {*large, *small}}
    assert _excess(counts, blend) > 5


def test_the_statistic_knows_its_own_distribution() -> None:
    expected = dict.fromkeys(product(range(4), repeat=2), 1 / 16)
    rng = random.Random(0)
    counts = Counter(rng.choice(list(expected)) for _ in range(NUM_DRAWS))
    assert abs(_excess(counts, expected)) < 3
    assert _excess(Counter({(0, 0): NUM_DRAWS}), expected) > 100
    assert _excess(Counter({(9, 9): 1}), expected) == math.inf

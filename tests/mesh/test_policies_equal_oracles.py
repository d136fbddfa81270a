"""Every policy in a mesh of three models equals its slow definition: alone, in a batch, and all mixed (C28)."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from allroads.config import load_settings
from allroads.policies.policy import Policy
from allroads.policies.registry import PolicyRegistry

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.processes import MeshProcesses
from ..oracle import Answer
from ..policies.cases import CASES, all_parameters, write_three_models
from ..policies.views import Value
from ..policies_oracle import PolicyOracle

NUM_PROMPTS, NUM_REQUIRED, NUM_ALONE = 64, 50, 3
MAX_TOKENS = 20
EOS = frozenset({2})
ROUNDING = 2e-4
POLICIES: dict[str, Policy] = {policy.name: policy for policy in PolicyRegistry.load().all()}
LOSSLESS = ("speculative", "lossless")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("three")
    write_three_models(path)
    return path


@pytest.fixture(scope="module")
def oracle(directory: Path) -> PolicyOracle:
    return PolicyOracle(directory, ("slm", "mlm", "llm"))


@pytest.fixture(scope="module")
def mesh(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    path = {name: str(directory / name) for name in ("slm", "mlm", "llm", "router", "citer", "co-llm")}
    settings = load_settings(
        overrides={
            "slm": {"path": path["slm"]},
            "middle": {"mlm": {"path": path["mlm"]}},
            "llm": {"path": path["llm"]},
            "router": {"path": path["router"], "scorers": {name: path[name] for name in ("citer", "co-llm")}},
        }
    )
    processes = MeshProcesses(settings, tmp_path_factory.mktemp("m"))
    with processes.running("llm", "mlm", "router", "slm"):
        yield processes


@pytest.fixture(scope="module")
def prompts(oracle: PolicyOracle) -> list[list[int]]:
    rng = random.Random(3)
    lengths = [rng.choice([16, 32]) if index % 2 else rng.randint(1, 40) for index in range(NUM_PROMPTS)]
    return [[rng.randrange(3, oracle.num_tokens) for _ in range(length)] for length in lengths]


def _assert_equal(reply: Reply, answer: Answer) -> None:
    assert reply.error is None, reply.error
    assert reply.token_ids == answer.token_ids
    assert reply.tiers == answer.tiers
    assert reply.finished is not None
    assert list(reply.finished.usage.num_committed_tokens) == [answer.tiers.count(tier) for tier in range(3)]


@pytest.mark.parametrize(("name", "given"), CASES, ids=[f"{name}-{index}" for index, (name, _) in enumerate(CASES)])
async def test_mesh_equals_oracle(
    name: str, given: dict[str, Value], mesh: MeshProcesses, oracle: PolicyOracle, prompts: list[list[int]]
) -> None:
    parameters = all_parameters(POLICIES[name], given)
    seeds = [100 + index for index in range(NUM_PROMPTS)]
    expected = oracle.answers(name, prompts, parameters, max_tokens=MAX_TOKENS, stop_token_ids=EOS, seeds=seeds)
    sure = [index for index, answer in enumerate(expected) if answer.margin > ROUNDING]
    assert len(sure) >= NUM_REQUIRED
    tiers = [tier for index in sure for tier in expected[index].tiers]
    if name not in ("slm", "llm"):
        assert 0.1 < tiers.count(0) / len(tiers) < 0.95, "the case should have both models write"
    wires = {
        index: request(prompts[index], name, max_tokens=MAX_TOKENS, seed=seeds[index], given=given) for index in sure
    }
    gate = asyncio.Semaphore(8)
    async with HomeClient(mesh.settings.slm.address) as client:
        alone = {index: (await client.answer(wires[index]))[0] for index in sure[:NUM_ALONE]}

        async def ask(index: int) -> Reply:
            async with gate:
                (reply,) = await client.answer(wires[index])
            return reply

        together = await asyncio.gather(*map(ask, sure))
    for index, reply in [*alone.items(), *zip(sure, together, strict=True)]:
        _assert_equal(reply, expected[index])


async def test_all_policies_mix_in_one_batch(
    mesh: MeshProcesses, oracle: PolicyOracle, prompts: list[list[int]]
) -> None:
    expected = [
        oracle.answers(
            name, [prompt], all_parameters(POLICIES[name], given), max_tokens=MAX_TOKENS, stop_token_ids=EOS, seeds=[7]
        )[0]
        for (name, given), prompt in zip(CASES, prompts, strict=False)
    ]
    wires = [
        request(prompt, name, max_tokens=MAX_TOKENS, seed=7, given=given)
        for (name, given), prompt in zip(CASES, prompts, strict=False)
    ]
    async with HomeClient(mesh.settings.slm.address) as client:
        replies = await client.answer(*wires)
    sure = [pair for pair in zip(replies, expected, strict=True) if pair[1].margin > ROUNDING]
    assert len(sure) >= len(CASES) - 4
    for reply, answer in sure:
        _assert_equal(reply, answer)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_batched_equals_alone(temperature: float, mesh: MeshProcesses, prompts: list[list[int]]) -> None:
    """Also when sampling, where no oracle of tokens exists."""
    wires = [
        request(prompt, name, max_tokens=MAX_TOKENS, seed=11, temperature=temperature, given=given)
        for (name, given), prompt in zip(CASES, prompts, strict=False)
    ]
    async with HomeClient(mesh.settings.slm.address) as client:
        together = await client.answer(*wires)
        alone = [(await client.answer(wire))[0] for wire in wires]
    assert [(reply.token_ids, reply.tiers) for reply in together] == [(reply.token_ids, reply.tiers) for reply in alone]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 9])
async def test_max_tokens_counts_committed_tokens(
    max_tokens: int, mesh: MeshProcesses, prompts: list[list[int]]
) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        replies = await client.answer(
            *(
                request(prompt, name, max_tokens=max_tokens, seed=5, ignore_eos=True, given=given)
                for (name, given), prompt in zip(CASES, prompts, strict=False)
            )
        )
    for reply in replies:
        assert reply.error is None, reply.error
        assert len(reply.token_ids) == max_tokens
        assert reply.finished is not None
        assert reply.finished.reason == 2, "the reason is the length"


async def test_a_stop_token_of_either_side_ends_the_answer(mesh: MeshProcesses, prompts: list[list[int]]) -> None:
    """The last token that each tier wrote, made a stop token, ends the answer where it first stands."""
    async with HomeClient(mesh.settings.slm.address) as client:
        ended_by = set()
        for (name, given), prompt in zip(CASES, prompts, strict=False):
            wire = request(prompt, name, max_tokens=MAX_TOKENS, seed=3, ignore_eos=True, given=given)
            (whole,) = await client.answer(wire)
            for tier in set(whole.tiers):
                last = max(index for index, writer in enumerate(whole.tiers) if writer == tier)
                first = whole.token_ids.index(whole.token_ids[last])
                wire.sampling.stop_token_ids[:] = [whole.token_ids[last]]
                (cut,) = await client.answer(wire)
                assert cut.finished is not None
                assert (cut.token_ids, cut.finished.reason) == (whole.token_ids[: first + 1], 1)
                ended_by.add(cut.tiers[-1])
    assert ended_by == {0, 1, 2}


@pytest.mark.parametrize("name", [policy.name for policy in POLICIES.values() if policy.never is not None])
async def test_never_is_the_small_models_answer(name: str, mesh: MeshProcesses, prompts: list[list[int]]) -> None:
    await _assert_same(mesh, prompts[:12], name, POLICIES[name].never or {}, "slm")


@pytest.mark.parametrize("name", [policy.name for policy in POLICIES.values() if policy.always is not None])
async def test_always_is_the_large_models_answer(name: str, mesh: MeshProcesses, prompts: list[list[int]]) -> None:
    await _assert_same(mesh, prompts[:12], name, POLICIES[name].always or {}, "llm")


async def _assert_same(
    mesh: MeshProcesses, prompts: list[list[int]], name: str, given: Mapping[str, float], alone: str
) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        replies = await client.answer(*(request(p, name, max_tokens=MAX_TOKENS, given=given) for p in prompts))
        own = await client.answer(*(request(p, alone, max_tokens=MAX_TOKENS) for p in prompts))
    assert all(reply.error is None for reply in replies)
    assert [reply.token_ids for reply in replies] == [reply.token_ids for reply in own]

"""Greedy output of the real mesh equals the slow definition of each policy, token for token (C28)."""

import asyncio
import random
from pathlib import Path

import pytest

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.plugin.allroads_scripted import SCHEDULES
from ..doubles.processes import MeshProcesses
from ..oracle import Answer, Decide, Oracle, scheduled

NUM_PROMPTS = 64
NUM_REQUIRED = 50
MAX_TOKENS = 32
EOS = frozenset({2})
VOCABULARY = 472
ROUNDING = 2e-4
"""Closer calls than this are left out: there the order of additions decides."""


@pytest.fixture(scope="module")
def oracle(tiny_pair: Path) -> Oracle:
    return Oracle(tiny_pair)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(7)
    # Half of them fill whole blocks, so that scheduled switches meet the edges.
    lengths = [rng.choice([16, 32, 48]) if index % 2 else rng.randint(1, 90) for index in range(NUM_PROMPTS)]
    return [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]


def _decisions(oracle: Oracle) -> dict[str, tuple[Decide, float | None]]:
    cases: dict[str, tuple[Decide, float | None]] = {
        "entropy": (oracle.entropy(2.0), 2.0),
        "r2r": (oracle.r2r(0.5), 0.5),
    }
    for schedule, is_large in SCHEDULES.items():
        cases[f"ahead-{schedule}"] = (scheduled(is_large), None)
    for schedule in ("all-large", "alternating", "block-edges"):
        cases[f"judged-{schedule}"] = (scheduled(SCHEDULES[schedule]), None)
    return cases


POLICIES = (
    "entropy", "r2r", "ahead-all-large", "ahead-all-small", "ahead-alternating",
    "ahead-block-edges", "ahead-runs", "judged-all-large", "judged-alternating", "judged-block-edges",
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
async def test_mesh_equals_oracle(policy: str, mesh: MeshProcesses, oracle: Oracle, prompts: list[list[int]]) -> None:
    decide, threshold = _decisions(oracle)[policy]
    expected = oracle.answer(prompts, decide, max_tokens=MAX_TOKENS, stop_token_ids=EOS)
    sure = [index for index, answer in enumerate(expected) if answer.margin > ROUNDING]
    assert len(sure) >= NUM_REQUIRED
    if threshold is not None:
        tiers = [tier for answer in expected for tier in answer.tiers]
        assert 0.1 < sum(tiers) / len(tiers) < 0.9, "the threshold should split the tokens"
    async with HomeClient(mesh.settings.slm.address) as client:
        alone = {}
        for index in sure[:5]:
            (alone[index],) = await client.answer(
                request(prompts[index], policy, max_tokens=MAX_TOKENS, threshold=threshold)
            )
        together: dict[int, Reply] = {}
        gate = asyncio.Semaphore(8)

        async def ask(index: int) -> None:
            async with gate:
                (together[index],) = await client.answer(
                    request(prompts[index], policy, max_tokens=MAX_TOKENS, threshold=threshold)
                )

        await asyncio.gather(*map(ask, sure))
    for replies in (alone, together):
        for index, reply in replies.items():
            _assert_equal(reply, expected[index])


async def test_two_hundred_tokens(mesh: MeshProcesses, oracle: Oracle, prompts: list[list[int]]) -> None:
    few = prompts[:8]
    for policy in ("judged-block-edges", "ahead-runs"):
        decide = scheduled(SCHEDULES[policy.split("-", 1)[1]])
        expected = oracle.answer(few, decide, max_tokens=200, stop_token_ids=frozenset())
        async with HomeClient(mesh.settings.slm.address) as client:
            replies = await client.answer(*(request(p, policy, max_tokens=200, ignore_eos=True) for p in few))
        sure = [index for index, answer in enumerate(expected) if answer.margin > ROUNDING]
        assert sure
        for index in sure:
            _assert_equal(replies[index], expected[index])


async def test_policies_mix_in_one_batch(mesh: MeshProcesses, oracle: Oracle, prompts: list[list[int]]) -> None:
    cases = _decisions(oracle)
    picked = list(zip(POLICIES, prompts, strict=False))
    expected = [
        oracle.answer([prompt], cases[policy][0], max_tokens=24, stop_token_ids=EOS)[0] for policy, prompt in picked
    ]
    async with HomeClient(mesh.settings.slm.address) as client:
        replies = await client.answer(
            *(request(prompt, policy, max_tokens=24, threshold=cases[policy][1]) for policy, prompt in picked)
        )
    sure = [pair for pair in zip(replies, expected, strict=True) if pair[1].margin > ROUNDING]
    assert len(sure) >= len(POLICIES) - 2
    for reply, answer in sure:
        _assert_equal(reply, answer)


def _assert_equal(reply: Reply, answer: Answer) -> None:
    assert reply.error is None
    assert reply.token_ids == answer.token_ids
    assert reply.tiers == answer.tiers
    assert reply.finished is not None
    usage = reply.finished.usage
    assert list(usage.num_committed_tokens) == [answer.tiers.count(0), answer.tiers.count(1)]

"""KV is reserved on every tier before a request starts: nothing waits for ever, mixes, or leaks (C25)."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from allroads.config import load_settings
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2

from ..doubles.home_client import HomeClient, request
from ..doubles.processes import MeshProcesses
from ..doubles.tier_probe import free_tier_tokens
from ..doubles.tiny_pair import write_tiny_pair

NUM_PROMPTS = 64
MAX_TOKENS = 40
BLOCK = 16
MARKERS = range(400, 400 + NUM_PROMPTS)
POLICIES = ("r2r", "entropy", "judged-alternating", "ahead-runs", "llm", "slm")
THRESHOLDS = {"r2r": 0.5, "entropy": 2.0}


def _prompts() -> list[list[int]]:
    """Each begins with a marker of its own, so none shares KV with another, and all it writes depends on it."""
    rng = random.Random(5)
    return [[marker] + [rng.randrange(3, 400) for _ in range(rng.randint(4, 60))] for marker in MARKERS]


def _num_blocks_needed(prompts: list[list[int]]) -> int:
    return sum(-(-(len(prompt) + MAX_TOKENS) // BLOCK) for prompt in prompts)


def _mesh(directory: Path, *, slm_tokens: int, llm_tokens: int) -> MeshProcesses:
    settings = load_settings(
        overrides={
            "slm": {"path": str(directory / "slm"), "num_kv_tokens": slm_tokens},
            "llm": {"path": str(directory / "llm"), "num_kv_tokens": llm_tokens},
            "router": {"path": str(directory / "router")},
        }
    )
    return MeshProcesses(settings, directory / "m")


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    """A mesh whose pools hold 30 % of what all prompts need together."""
    directory = tmp_path_factory.mktemp("crowded")
    write_tiny_pair(directory, likeness=0.9)
    num_tokens = int(0.3 * _num_blocks_needed(_prompts())) * BLOCK
    mesh = _mesh(directory, slm_tokens=num_tokens, llm_tokens=num_tokens)
    with mesh.running("llm", "router", "slm"):
        yield mesh


async def test_sixty_four_prompts_in_a_third_of_the_room(crowded: MeshProcesses) -> None:
    """With aborts at random: whoever is not aborted gets the answer that it gets alone, and all is free at the end."""
    rng = random.Random(6)
    prompts = _prompts()
    policies = [POLICIES[index % len(POLICIES)] for index in range(NUM_PROMPTS)]

    def opening(index: int) -> model_pb2.OpenRequest:
        policy = policies[index]
        return request(prompts[index], policy, max_tokens=MAX_TOKENS, threshold=THRESHOLDS.get(policy), ignore_eos=True)

    async with HomeClient(crowded.settings.slm.address) as client:
        alone = [(await client.answer(opening(index)))[0] for index in range(NUM_PROMPTS)]
        free = client.load.num_free_kv_tokens
        tier_free = await free_tier_tokens(crowded.settings.llm.address)
        assert len({tuple(reply.token_ids) for reply in alone}) > 0.9 * NUM_PROMPTS, "answers should tell prompts apart"
        replies = await client.open(*(opening(index) for index in range(NUM_PROMPTS)))
        first_number = NUM_PROMPTS + 1
        aborted = set(rng.sample(range(NUM_PROMPTS), 16))
        for index in sorted(aborted, key=lambda index: rng.random()):
            await client.abort(first_number + index)
            other = replies[rng.randrange(NUM_PROMPTS)]
            if not other.done.is_set():
                with_limit = asyncio.wait_for(other.progress.wait(), 0.05)
                await asyncio.gather(with_limit, return_exceptions=True)
        async with asyncio.timeout(90):
            for index, reply in enumerate(replies):
                if index not in aborted:
                    await reply.done.wait()
        for index, reply in enumerate(replies):
            if index in aborted and not reply.done.is_set():
                assert reply.token_ids == alone[index].token_ids[: len(reply.token_ids)]
            else:
                assert reply.error is None
                assert reply.token_ids == alone[index].token_ids
                assert reply.tiers == alone[index].tiers
        (last,) = await client.answer(opening(0))
        assert last.token_ids == alone[0].token_ids
        async with asyncio.timeout(10):
            while client.load.num_free_kv_tokens != free:
                await client.answer(request(prompts[0], "slm", max_tokens=1))
    async with asyncio.timeout(10):
        while await free_tier_tokens(crowded.settings.llm.address) != tier_free:
            pass


@pytest.mark.parametrize(("slm_tokens", "llm_tokens"), [(49 * BLOCK, 4096), (4096, 49 * BLOCK)])
async def test_what_can_never_fit_is_refused_at_once(slm_tokens: int, llm_tokens: int, tmp_path: Path) -> None:
    """C25: a pool of 49 blocks, at either tier; the smaller one limits, and nobody queues behind the impossible."""
    write_tiny_pair(tmp_path)
    mesh = _mesh(tmp_path, slm_tokens=slm_tokens, llm_tokens=llm_tokens)
    mesh.start("llm", "router", "slm")
    try:
        await mesh.until_ready("slm")
        async with HomeClient(mesh.settings.slm.address) as client:
            huge, grows, *small = await client.answer(
                request([5] * 1002, "r2r"),
                request([5] * 700, "r2r", max_tokens=85, ignore_eos=True),
                *(
                    request([7 + index] * 20, "judged-alternating", max_tokens=20, ignore_eos=True)
                    for index in range(5)
                ),
            )
            (fits,) = await client.answer(request([5] * 700, "r2r", max_tokens=84, ignore_eos=True))
    finally:
        mesh.stop()
    for refused in (huge, grows):
        assert refused.error is not None
        assert refused.error.code == pb.ERROR_CODE_CONTEXT_LENGTH_EXCEEDED
        assert str(49 * BLOCK) in refused.error.message
    assert huge.error is not None
    assert "1002" in huge.error.message
    for reply in small:
        assert len(reply.token_ids) == 20
    assert len(fits.token_ids) == 84


async def test_nothing_is_committed_before_the_larger_tier_has_room(tmp_path: Path) -> None:
    """One request fills the larger tier's pool; the next is computed meanwhile, and writes its first token after it."""
    write_tiny_pair(tmp_path)
    mesh = _mesh(tmp_path, slm_tokens=4096, llm_tokens=512)
    mesh.start("llm", "router", "slm")
    try:
        await mesh.until_ready("slm")
        async with HomeClient(mesh.settings.slm.address) as client:
            (first,) = await client.open(request([5] * 10, "r2r", threshold=0.5, max_tokens=400, ignore_eos=True))
            await first.progress.wait()
            # Never goes to the large model, but might: the policy can reach it.
            (second,) = await client.open(request([6] * 10, "r2r", threshold=1.0, max_tokens=400, ignore_eos=True))
            (third,) = await client.answer(request([7] * 10, "slm", max_tokens=5, ignore_eos=True))
            assert len(third.token_ids) == 5
            assert not first.done.is_set()
            await first.done.wait()
            seen_meanwhile = len(second.token_ids)
            await second.done.wait()
            (alone,) = await client.answer(request([6] * 10, "r2r", threshold=1.0, max_tokens=400, ignore_eos=True))
    finally:
        mesh.stop()
    assert seen_meanwhile <= 1, "the second request wrote while the first held all of the larger tier's KV"
    assert len(first.token_ids) == len(second.token_ids) == 400
    assert second.token_ids == alone.token_ids

"""A request's answer, and who wrote each token, do not depend on its neighbours (C43, C44)."""

import random

from allroads.mesh.wire import model_pb2

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.processes import MeshProcesses

PROMPT = [5, 6, 7, 8, 9]


def _other(rng: random.Random) -> model_pb2.OpenRequest:
    prompt = [rng.randrange(3, 472) for _ in range(rng.choice([1, 17, 90]))]
    policy = rng.choice(["r2r", "entropy", "judged-alternating", "llm", "slm"])
    threshold = {"r2r": 0.5, "entropy": 2.0}.get(policy)
    return request(prompt, policy, threshold=threshold, max_tokens=rng.randint(5, 60), ignore_eos=True)


async def test_the_same_alone_and_in_any_company(mesh: MeshProcesses) -> None:
    """Others join and leave midway; 50 repeats."""
    rng = random.Random(1)

    def wanted() -> model_pb2.OpenRequest:
        return request(PROMPT, "r2r", threshold=0.5, max_tokens=40, ignore_eos=True)

    async with HomeClient(mesh.settings.slm.address) as client:
        (alone,) = await client.answer(wanted())
        assert {0, 1} == set(alone.tiers)
        for repeat in range(48):
            size = (1, 3, 7, 15)[repeat % 4]
            early = await client.open(*(_other(rng) for _ in range(size // 2)))
            (reply,) = await client.open(wanted())
            late = await client.open(*(_other(rng) for _ in range(size - size // 2)))
            await reply.done.wait()
            assert reply.token_ids == alone.token_ids
            assert reply.tiers == alone.tiers
            for other in (*early, *late):
                await other.done.wait()


async def test_a_long_prompt_does_not_hold_up_short_ones(mesh: MeshProcesses) -> None:
    """They are computed beside it: all are answered before its first token. How long that takes, bench.stall tells."""
    long = [3 + index % 400 for index in range(1850)]
    async with HomeClient(mesh.settings.slm.address) as client:
        running = (await client.open(request(PROMPT, "judged-alternating", max_tokens=1900, ignore_eos=True)))[0]
        await running.progress.wait()
        order: list[Reply] = []
        (slow,) = await client.open(request(long, "slm", max_tokens=5, ignore_eos=True))
        shorts = await client.open(
            *(request([9 + index] * 20, "slm", max_tokens=1, ignore_eos=True) for index in range(10))
        )
        before = len(running.token_ids)
        for reply in shorts:
            await reply.done.wait()
            order.append(reply)
            assert reply.error is None
        assert not slow.token_ids, "the short prompts should be through before the long one"
        await slow.done.wait()
        assert len(running.token_ids) > before, "a request that was being written should go on meanwhile"
        assert len(slow.token_ids) == 5

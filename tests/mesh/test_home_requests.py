"""What a home refuses, how requests end, and that nothing stays behind."""

import asyncio

import pytest
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.processes import MeshProcesses
from ..doubles.tier_probe import free_tier_tokens

PROMPT = [5, 6, 7, 8, 9]


async def _free_tokens(mesh: MeshProcesses) -> tuple[int, int]:
    """Free KV at the home and at the larger tier, as a request of our own sees it."""
    async with HomeClient(mesh.settings.slm.address) as client:
        (reply,) = await client.answer(request(PROMPT, "slm", max_tokens=1))
        assert reply.error is None
        home = client.load.num_free_kv_tokens
    return home, await free_tier_tokens(mesh.settings.llm.address)


async def _until_free(mesh: MeshProcesses, expected: tuple[int, int]) -> None:
    async with asyncio.timeout(20):
        while await _free_tokens(mesh) != expected:
            pass


async def test_leaving_frees_every_tier(mesh: MeshProcesses) -> None:
    """C16: clients that hang up, and requests that are aborted, leave nothing anywhere."""
    before = await _free_tokens(mesh)
    async with HomeClient(mesh.settings.slm.address) as client:
        replies = await client.open(
            *(
                request(PROMPT, policy, max_tokens=1500, ignore_eos=True)
                for policy in ("slm", "llm", "ahead-runs", "judged-alternating", "r2r", "entropy", "r2r", "llm")
            )
        )
        async with asyncio.timeout(60):
            for reply in replies:
                await reply.progress.wait()
        await client.abort(1, 2, 3, 99)
        assert not any(reply.done.is_set() for reply in replies)
    await _until_free(mesh, before)


async def test_a_deadline_ends_a_request_on_every_tier(mesh: MeshProcesses) -> None:
    before = await _free_tokens(mesh)
    async with HomeClient(mesh.settings.slm.address) as client:
        late = request(PROMPT, "judged-alternating", max_tokens=2000, ignore_eos=True)
        late.timeout_ms = 300
        (reply,) = await client.answer(late)
    assert reply.error is not None
    assert reply.error.code == pb.ERROR_CODE_DEADLINE_EXCEEDED
    await _until_free(mesh, before)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("prompt", request([], "slm")),
        ("prompt", request([472], "slm")),
        ("max_tokens", request(PROMPT, "slm", max_tokens=0)),
        ("max_tokens", request(PROMPT, "slm", max_tokens=2044)),
        ("routing.policy", request(PROMPT, "no-such")),
        ("routing.threshold", request(PROMPT, "r2r", threshold=1.5)),
        ("routing.threshold", request(PROMPT, "r2r", threshold=float("nan"))),
        ("routing.share", request(PROMPT, "random")),
        ("routing.share", request(PROMPT, "random", share=float("nan"))),
        ("temperature", request(PROMPT, "slm", temperature=-1.0)),
    ],
)
async def test_wrong_requests_are_refused_alone(field: str, wrong: model_pb2.OpenRequest, mesh: MeshProcesses) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        refused, served = await client.answer(wrong, request(PROMPT, "slm", max_tokens=3))
    assert refused.error is not None
    assert refused.error.field == field
    assert not refused.token_ids
    assert served.finished is not None


async def test_a_number_is_used_once(mesh: MeshProcesses) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        (first,) = await client.open(request(PROMPT, "slm", max_tokens=1000, ignore_eos=True))
        await first.progress.wait()
        twin = request(PROMPT, "slm")
        twin.sequence_id = 1
        first.progress.clear()
        await client._call.write(model_pb2.GenerateRequest(opens=[twin]))
        await first.done.wait()
    assert first.error is not None
    assert first.error.field == "sequence_id"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("faulty", "a fault of the plug-in"),
        ("faulty-waiting", "waits for more drafts"),
        ("faulty-returning", "back to the small model"),
        ("faulty-straying", "it named tier 7, its reach is [0, 1]"),
        ("faulty-circling", "nothing came of 9 visits in a row"),
        ("faulty-visit", "send gave 0 tokens"),
        ("faulty-reach", "its reach is [] of 2 tiers"),
        ("faulty-verify", "no verify to judge it"),
    ],
)
async def test_a_plug_in_with_a_fault_fails_its_own_requests_only(
    policy: str, message: str, mesh: MeshProcesses
) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        faulty, good = await client.answer(request(PROMPT, policy), request(PROMPT, "judged-alternating"))
    assert faulty.error is not None
    assert f"policy {policy} failed" in faulty.error.message
    assert message in faulty.error.message
    assert not faulty.token_ids
    assert good.finished is not None


async def test_one_token_is_one_token(mesh: MeshProcesses) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        for policy in ("slm", "llm", "r2r", "judged-alternating"):
            (reply,) = await client.answer(request(PROMPT, policy, max_tokens=1, ignore_eos=True))
            assert len(reply.token_ids) == 1
            assert reply.finished is not None
            assert reply.finished.reason == pb.FINISH_REASON_LENGTH


async def test_the_longest_request_that_fits(mesh: MeshProcesses) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        (reply,) = await client.answer(request([5] * 2040, "judged-alternating", max_tokens=8, ignore_eos=True))
    assert len(reply.token_ids) == 8


async def test_sampling_depends_on_the_seed_alone(mesh: MeshProcesses) -> None:
    def drawn(seed: int) -> model_pb2.OpenRequest:
        return request(PROMPT, "r2r", temperature=0.9, seed=seed, threshold=0.5, ignore_eos=True)

    async with HomeClient(mesh.settings.slm.address) as client:
        (alone,) = await client.answer(drawn(5))
        crowd = await client.answer(*(drawn(seed) for seed in (1, 5, 2, 5, 3)))
    assert crowd[1].token_ids == crowd[3].token_ids == alone.token_ids
    assert len({tuple(reply.token_ids) for reply in crowd}) == 4


async def test_random_writes_about_its_share(mesh: MeshProcesses) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        replies: list[Reply] = await client.answer(
            *(request(PROMPT, "random", share=0.3, seed=seed, max_tokens=200, ignore_eos=True) for seed in range(4))
        )
    tiers = [tier for reply in replies for tier in reply.tiers]
    assert 0.22 < sum(tiers) / len(tiers) < 0.38


async def test_a_resumed_request_goes_on_where_it_was(mesh: MeshProcesses) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        (whole,) = await client.answer(request(PROMPT, "r2r", threshold=0.5, max_tokens=30, ignore_eos=True))
        rest = request(PROMPT, "r2r", threshold=0.5, max_tokens=30, ignore_eos=True)
        rest.committed_token_ids.extend(whole.token_ids[:11])
        rest.committed_tiers.extend(whole.tiers[:11])
        (reply,) = await client.answer(rest)
    assert whole.token_ids[:11] + reply.token_ids == whole.token_ids
    assert whole.finished is not None
    assert reply.finished is not None
    assert reply.finished.usage.num_committed_tokens == whole.finished.usage.num_committed_tokens

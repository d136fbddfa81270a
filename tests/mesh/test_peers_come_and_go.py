"""Peers die and come back, or do not: nothing is lost, nothing comes twice, nobody waits for ever (C21, C24)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from allroads.config import MeshSettings, load_settings

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.processes import MeshProcesses

PROMPTS = [[5, 6, 7], [8, 9, 10, 11], [12] * 40]
LONG = 250
LONGER = 1500


def _settings(pair: Path, **slm: object) -> MeshSettings:
    overrides: dict[str, dict[str, object]] = {name: {"path": str(pair / name)} for name in ("slm", "llm", "router")}
    overrides["slm"] |= slm
    return load_settings(overrides=overrides)


@contextlib.asynccontextmanager
async def _started(settings: MeshSettings, directory: Path) -> AsyncIterator[MeshProcesses]:
    mesh = MeshProcesses(settings, directory)
    mesh.start("llm", "router", "slm")
    try:
        await mesh.until_ready("slm")
        yield mesh
    finally:
        mesh.stop()


async def _ask_some(client: HomeClient) -> list[Reply]:
    """A few that need the router, then a few that need the large model, then one that needs nobody."""
    asked = ("r2r", "r2r", "judged-alternating", "lossless", "llm", "slm")
    return await client.open(
        *(
            request(prompt, policy, max_tokens=LONGER, ignore_eos=True)
            for policy, prompt in zip(asked, PROMPTS * 2, strict=True)
        )
    )


async def _ask_all(client: HomeClient) -> list[Reply]:
    max_tokens = LONG
    return await client.open(
        *(request(prompt, "r2r", threshold=0.5, max_tokens=max_tokens, ignore_eos=True) for prompt in PROMPTS),
        *(request(prompt, "judged-alternating", max_tokens=max_tokens, ignore_eos=True) for prompt in PROMPTS),
        request(PROMPTS[0], "lossless", max_tokens=max_tokens, ignore_eos=True),
        request(PROMPTS[1], "cascade-opt", max_tokens=max_tokens, ignore_eos=True, alpha=0.2),
        request(PROMPTS[2], "cascade-v2", max_tokens=max_tokens, ignore_eos=True, alpha=0.2, temperature=1, seed=7),
        request(PROMPTS[1], "r-stitch", max_tokens=max_tokens, ignore_eos=True, threshold=0.3),
        request(PROMPTS[0], "llm", max_tokens=max_tokens, ignore_eos=True),
        request(PROMPTS[0], "slm", max_tokens=max_tokens, ignore_eos=True),
    )


async def _until_done(replies: list[Reply]) -> None:
    async with asyncio.timeout(110):
        for reply in replies:
            await reply.done.wait()


async def _until_progress(replies: list[Reply], num_tokens: int) -> None:
    async with asyncio.timeout(60):
        for reply in replies:
            while len(reply.token_ids) < num_tokens:
                reply.progress.clear()
                await reply.progress.wait()


@pytest.mark.timeout(300)
async def test_requests_survive_the_death_of_each_peer(tiny_pair: Path, tmp_path: Path) -> None:
    async with _started(_settings(tiny_pair, peer_timeout_s=100.0), tmp_path) as mesh:
        async with HomeClient(mesh.settings.slm.address) as client:
            undisturbed = await _ask_all(client)
            await _until_done(undisturbed)
            for victim in ("llm", "router"):
                replies = await _ask_all(client)
                await _until_progress(replies, 5)
                mesh.kill(victim)
                mesh.start(victim)
                await _until_done(replies)
                for reply, expected in zip(replies, undisturbed, strict=True):
                    assert reply.error is None
                    assert reply.token_ids == expected.token_ids
                    assert reply.tiers == expected.tiers
                    assert reply.finished is not None
                    assert not reply.finished.usage.degraded
        assert set(mesh.stop().values()) == {0}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("rule", ["degrade", "fail"])
async def test_patience_with_a_lost_peer_ends(rule: str, tiny_pair: Path, tmp_path: Path) -> None:
    settings = _settings(tiny_pair, peer_timeout_s=0.5, on_peer_loss=rule)
    async with _started(settings, tmp_path) as mesh:
        for victim in ("router", "llm"):
            async with HomeClient(mesh.settings.slm.address) as client:
                replies = await _ask_some(client)
                await _until_progress(replies, 5)
                mesh.kill(victim)
                done = [reply for reply in replies if reply.done.is_set()]
                await _until_done(replies)
            *needing, alone = replies
            assert alone not in done, "requests must be long enough to see the peer die"
            assert alone.finished is not None
            assert not alone.finished.usage.degraded
            if victim == "router":
                needing = needing[:2]
            needing = [reply for reply in needing if reply not in done]
            assert len(needing) >= 2
            for reply in needing:
                if rule == "fail":
                    assert reply.error is not None
                    assert "out of reach" in reply.error.message
                    continue
                assert reply.finished is not None
                assert reply.finished.usage.degraded
                assert len(reply.token_ids) == LONGER
            if victim == "router":
                mesh.start("router")
                await mesh.until_ready("router")
                async with HomeClient(mesh.settings.slm.address) as client:
                    (again,) = await client.answer(request(PROMPTS[0], "judged-alternating", max_tokens=8))
                assert again.finished is not None

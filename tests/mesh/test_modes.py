"""Audit, canary, off: who writes is who should, and what was decided is on record."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from allroads.config import load_settings

from ..doubles.home_client import HomeClient, Reply, request
from ..doubles.processes import MeshProcesses

PROMPTS = [[random.Random(seed).randrange(3, 472) for _ in range(12)] for seed in range(12)]
MAX_TOKENS = 30


def _started(pair: Path, directory: Path, **slm: Any) -> MeshProcesses:
    overrides: dict[str, dict[str, Any]] = {name: {"path": str(pair / name)} for name in ("slm", "llm", "router")}
    overrides["slm"] |= slm
    return MeshProcesses(load_settings(overrides=overrides), directory)


@pytest.fixture(scope="module", params=["llm", "slm"])
def audited(
    request: pytest.FixtureRequest, tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MeshProcesses, Path]]:
    directory = tmp_path_factory.mktemp("a")
    log = directory / "decisions.jsonl"
    mesh = _started(
        tiny_pair, directory / "m", mode="audit", writer=request.param, decisions_path=str(log), decisions_context=4
    )
    with mesh.running("llm", "router", "slm"):
        yield mesh, log


async def _answers(mesh: MeshProcesses, policy: str, mode: str = "", key: str = "", **parameters: float) -> list[Reply]:
    async with HomeClient(mesh.settings.slm.address) as client:
        wires = [request(prompt, policy, max_tokens=MAX_TOKENS, given=parameters) for prompt in PROMPTS]
        for wire in wires:
            wire.routing.mode = mode
            wire.routing.key = key
        return await client.answer(*wires)


def _read(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


async def _lines(log: Path, num_ended: int) -> list[dict[str, Any]]:
    """All that is recorded, once so many requests are."""
    async with asyncio.timeout(20):
        while True:
            lines = _read(log)
            if sum("end" in line for line in lines) >= num_ended:
                return lines
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(("policy", "threshold"), [("r2r", 0.5), ("entropy", 2.0)])
async def test_an_audit_changes_nothing_and_records_everything(
    policy: str, threshold: float, audited: tuple[MeshProcesses, Path]
) -> None:
    mesh, log = audited
    writer = mesh.settings.slm.writer
    log.write_text("")
    own = await _answers(mesh, writer, mode="on")
    replies = await _answers(mesh, policy, threshold=threshold)
    assert [reply.token_ids for reply in replies] == [reply.token_ids for reply in own]
    assert {tier for reply in replies for tier in reply.tiers} == {0 if writer == "slm" else 1}
    lines = [line for line in await _lines(log, 2 * len(PROMPTS)) if line["policy"] == policy]
    decisions = [line for line in lines if "end" not in line]
    assert len(decisions) == sum(len(reply.token_ids) for reply in replies)
    assert {line["acted"] for line in decisions} == {False}
    assert {line["mode"] for line in lines} == {"audit"}
    routed = sum(line["routed"] for line in decisions)
    assert 0.1 < routed / len(decisions) < 0.9
    number = "score" if policy == "r2r" else "entropy"
    assert all(line["routed"] == (line[number] >= threshold) for line in decisions)
    by_request: dict[int, list[dict[str, Any]]] = {}
    for line in decisions:
        by_request.setdefault(line["request"], []).append(line)
    texts = sorted([line["written"] for line in own] for own in by_request.values())
    assert texts == sorted(reply.token_ids for reply in replies)
    for own_lines in by_request.values():
        assert [line["position"] for line in own_lines] == list(range(len(own_lines)))
        # The last tokens before each decision, those written before it among them.
        assert own_lines[5]["context"] == [line["written"] for line in own_lines[1:5]]
    if writer == "llm":
        assert all(line["large"] == line["written"] for line in decisions)
    else:
        assert all(line["proposal"] == line["written"] and line["large"] is None for line in decisions)


async def test_a_request_chooses_its_mode(audited: tuple[MeshProcesses, Path]) -> None:
    mesh, _ = audited
    routed = await _answers(mesh, "r2r", mode="on", threshold=0.5)
    off = await _answers(mesh, "r2r", mode="off", threshold=0.5)
    own = await _answers(mesh, mesh.settings.slm.writer, mode="on")
    assert {tier for reply in routed for tier in reply.tiers} == {0, 1}
    assert [reply.token_ids for reply in off] == [reply.token_ids for reply in own]
    modes = [{reply.finished.usage.mode for reply in replies if reply.finished} for replies in (routed, off)]
    assert modes == [{"on"}, {"off"}]


@pytest.mark.parametrize(("policy", "mode"), [("r2r", "sometimes"), ("lossless", "audit"), ("llm", "audit")])
async def test_modes_that_cannot_be_are_refused(policy: str, mode: str, audited: tuple[MeshProcesses, Path]) -> None:
    (reply, *_) = await _answers(audited[0], policy, mode=mode)
    assert reply.error is not None
    assert reply.error.field == "routing.mode"


async def test_a_canary_is_sticky_and_has_its_share(tiny_pair: Path, tmp_path: Path) -> None:
    mesh = _started(tiny_pair, tmp_path / "m", mode="canary", canary_share=0.3, writer="slm")
    mesh.start("llm", "router", "slm")
    try:
        await mesh.until_ready("slm")
        async with HomeClient(mesh.settings.slm.address) as client:
            wires = [request([5, 6], "r2r", max_tokens=1, threshold=0.5) for _ in range(400)]
            for index, wire in enumerate(wires):
                wire.routing.key = f"user-{index % 200}"
            replies = await client.answer(*wires)
            modes = [reply.finished.usage.mode for reply in replies if reply.finished is not None]
            assert modes[:200] == modes[200:]
            assert 0.2 < modes.count("on") / len(modes) < 0.4
            loose = [request([5, 6], "r2r", max_tokens=1, threshold=0.5) for _ in range(200)]
            for index, wire in enumerate(loose):
                wire.request_id = f"request-{index}"
            replies = await client.answer(*loose)
            modes = [reply.finished.usage.mode for reply in replies if reply.finished is not None]
            assert 0.2 < modes.count("on") / len(modes) < 0.4
        assert set(mesh.stop().values()) == {0}
    finally:
        mesh.stop()


@pytest.mark.timeout(240)
async def test_a_share_is_held_in_a_real_mesh(tiny_pair: Path, tmp_path: Path) -> None:
    mesh = _started(tiny_pair, tmp_path / "m", target_share=0.2)
    mesh.start("llm", "router", "slm")
    rng = random.Random(4)
    try:
        await mesh.until_ready("slm")
        async with HomeClient(mesh.settings.slm.address) as client:
            tiers: list[int] = []
            for _ in range(4):
                prompts = [[rng.randrange(3, 472) for _ in range(8)] for _ in range(12)]
                replies = await client.answer(*(request(p, "", max_tokens=150, ignore_eos=True) for p in prompts))
                tiers = [tier for reply in replies for tier in reply.tiers]
            assert abs(tiers.count(1) / len(tiers) - 0.2) < 0.04
            state = client.load.routing
            assert state.target_share == 0.2
            assert abs(state.share - 0.2) < 0.1
            assert 0 < state.threshold < 1
            # Requests that name a threshold keep it.
            (all_large,) = await client.answer(request(prompts[0], "r2r", max_tokens=20, threshold=0.0))
            assert set(all_large.tiers) == {1}
        assert set(mesh.stop().values()) == {0}
    finally:
        mesh.stop()

"""Sequences that move from one tier's process to another's on the same host, with their KV where that can be had."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from allroads.config import load_settings
from allroads.mesh.channels import open_channel
from allroads.mesh.regions import DIRECTORY
from allroads.mesh.wire import common_pb2 as pb
from allroads.mesh.wire import model_pb2, model_pb2_grpc

from ..doubles.forks import Fork
from ..doubles.processes import MeshProcesses
from ..doubles.tiny_pair import write_tiny_pair

pytestmark = pytest.mark.skipif(not DIRECTORY.is_dir(), reason="no /dev/shm here")

PROMPT = [5 + 7 * index % 90 for index in range(200)]
BLOCK = 16


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    num_cached: int
    num_positions: int


async def _visit(address: str, tokens: list[int], max_tokens: int) -> Answer:
    """What a tier writes after these tokens. The sequence is over there when this returns."""
    written: list[int] = []
    num_cached = num_positions = 0
    async with open_channel(address, 1 << 20) as channel, asyncio.timeout(60):
        call = model_pb2_grpc.TierServiceStub(channel).Visit(wait_for_ready=True)
        await call.write(model_pb2.VisitRequest(hand_offs=[_open(1, tokens, max_tokens)]))
        is_over = False
        while not is_over:
            response = await _read(call)
            written += response.token_ids
            num_cached += sum(response.num_cached_tokens)
            num_positions += sum(response.num_computed_tokens)
            is_over = any(response.returned)
        # Closed before the second one is run.
        await call.write(model_pb2.VisitRequest(hand_offs=[_open(2, [5], 1)], closed_sequence_ids=[1]))
        while not any((await _read(call)).returned):
            pass
        call.cancel()
    return Answer(written, num_cached, num_positions)


def _open(number: int, tokens: list[int], max_tokens: int) -> model_pb2.HandOff:
    visitor = model_pb2.VisitorParams(
        max_length=len(tokens) + max_tokens, num_prompt_tokens=len(tokens), sampling=pb.SamplingParams(temperature=0)
    )
    return model_pb2.HandOff(sequence_id=number, unseen_token_ids=tokens, max_tokens=max_tokens, visitor=visitor)


async def _read(call: Any) -> model_pb2.VisitResponse:
    response = await call.read()
    assert isinstance(response, model_pb2.VisitResponse)
    assert not response.errors
    return response


def _regions(process: Fork | subprocess.Popen[bytes]) -> list[str]:
    """What a process has in shared memory, or has left there."""
    return [path.name for path in DIRECTORY.glob(f"allroads-{process.pid}-*")]


@dataclass(frozen=True)
class Tiers:
    """`old` lends; `new` and `other`, which has other weights, adopt from it."""

    old: MeshProcesses
    new: MeshProcesses
    other: MeshProcesses


def _tier(pair: Path, directory: Path, **llm: object) -> MeshProcesses:
    overrides: dict[str, dict[str, object]] = {name: {"path": str(pair / name)} for name in ("slm", "llm", "router")}
    overrides["llm"] |= llm | {"num_kv_tokens": 1024, "block_size_tokens": BLOCK}
    return MeshProcesses(load_settings(overrides=overrides), directory)


@pytest.fixture
def tiers(tiny_pair: Path, tmp_path: Path) -> Iterator[Tiers]:
    write_tiny_pair(tmp_path / "pair", seed=1)
    old = _tier(tiny_pair, tmp_path / "old", lends_kv=True)
    new = _tier(tiny_pair, tmp_path / "new", adopts_from=old.address("llm"))
    other = _tier(tmp_path / "pair", tmp_path / "other", adopts_from=old.address("llm"))
    with ExitStack() as running:
        for mesh in (old, new, other):
            running.callback(mesh.stop)
            mesh.start("llm")
        yield Tiers(old, new, other)


async def test_a_rolling_restart_computes_what_is_new(tiers: Tiers) -> None:
    whole = await _visit(tiers.old.address("llm"), PROMPT, 40)
    assert (len(whole.tokens), whole.num_cached) == (40, 0)
    half = PROMPT + whole.tokens[:20]
    moved = await _visit(tiers.new.address("llm"), half, 20)
    assert moved.tokens == whole.tokens[20:]
    assert moved.num_cached == (len(half) - 1) // BLOCK * BLOCK
    assert moved.num_positions == len(half) - moved.num_cached + 19

    strange = await _visit(tiers.other.address("llm"), half, 20)
    assert (len(strange.tokens), strange.num_cached) == (20, 0)
    assert "KV is not adopted from" in tiers.other.log("llm")
    assert "weights_hash is" in tiers.other.log("llm")

    old = tiers.old.processes["llm"]
    assert len(_regions(old)) == 1
    assert tiers.old.stop() == {"llm": 0}
    assert not _regions(old)
    # What was adopted stays, and who adopts does well without a lender.
    again = await _visit(tiers.new.address("llm"), half, 20)
    assert (again.tokens, again.num_cached) == (moved.tokens, moved.num_cached)
    assert tiers.new.stop() == {"llm": 0}
    assert f"KV of {moved.num_cached} tokens was adopted from" in tiers.new.log("llm")


async def test_a_lender_that_dies_over_a_loan(tiers: Tiers) -> None:
    """Stopped first, so that it is asked for sure and answers never."""
    whole = await _visit(tiers.old.address("llm"), PROMPT, 20)
    await tiers.new.until_ready("llm")
    tiers.old.processes["llm"].send_signal(signal.SIGSTOP)
    alone = await _visit(tiers.new.address("llm"), PROMPT, 20)
    assert (alone.tokens, alone.num_cached) == (whole.tokens, 0)
    assert tiers.new.log("llm").count("KV is not adopted from") == 1
    killed = tiers.old.processes["llm"]
    tiers.old.kill("llm")
    again = await _visit(tiers.new.address("llm"), [9, *PROMPT], 20)
    assert (len(again.tokens), again.num_cached) == (20, 0)

    assert len(_regions(killed)) == 1
    tiers.old.start("llm")
    await tiers.old.until_ready("llm")
    assert not _regions(killed), "the next one removes what a killed one left"

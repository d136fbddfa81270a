"""Checks of what no plug-in can break fail for a mesh that lies: answers are changed on their way."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import pytest
from allroads.conformance import endings
from allroads.conformance.bench import Bench, make_bench
from allroads.conformance.bounds import bad_parameters_are_refused
from allroads.conformance.endings import (
    aborts_free_all_tiers,
    large_stop_ends,
    max_tokens_counts_committed,
    small_stop_ends,
    tokens_are_counted_by_tier,
)
from allroads.conformance.equality import equals_reference, neighbours_are_unaffected
from allroads.conformance.mesh_client import Asked, MeshClient
from allroads.conformance.question import Answer
from allroads.conformance.result import Outcome
from allroads.conformance.slow_mesh import SlowMesh
from allroads.conformance.suite import Check
from allroads.policies.registry import PolicyRegistry

from ..doubles.processes import MeshProcesses


class DoctoredClient(MeshClient):
    doctor: Callable[[Answer], None] | None = None
    aborts = True

    async def answers(self, asked: Sequence[Asked]) -> list[Answer]:
        answers = await super().answers(asked)
        for answer in answers:
            if self.doctor is not None:
                self.doctor(answer)
        return answers

    async def abort(self, asked: Iterable[Asked]) -> None:
        if self.aborts:
            await super().abort(asked)


@asynccontextmanager
async def bench_of(
    mesh: MeshProcesses, policies: PolicyRegistry, reference: SlowMesh
) -> AsyncIterator[tuple[Bench, DoctoredClient]]:
    async with DoctoredClient(mesh.settings.slm.address, timeout_s=30) as client:
        described = await client.describe()
        yield (
            make_bench(
                mesh.settings, described, policies, "entropy", {"threshold": 2.0}, client, reference, num_prompts=8
            ),
            client,
        )


def one_token_more(answer: Answer) -> None:
    answer.token_ids.append(5)
    answer.tiers.append(0)


def not_stopped(answer: Answer) -> None:
    answer.is_stopped = False


def other_tier(answer: Answer) -> None:
    answer.tiers[-1] = 1 - answer.tiers[-1]


def last_usage(answer: Answer) -> None:
    answer.usage.num_committed_tokens[0] += 1


def served(answer: Answer) -> None:
    answer.error = None


def no_range(answer: Answer) -> None:
    if answer.error is not None:
        answer.error.message = "out of range"


@pytest.mark.parametrize(
    ("check", "doctor", "said"),
    [
        (max_tokens_counts_committed, one_token_more, "max_tokens 1, prompt 0: 2 tokens, ended by its length"),
        (small_stop_ends, one_token_more, "goes on after the stop token"),
        (small_stop_ends, not_stopped, "the mesh ended by its length, the reference ended by a stop token"),
        (large_stop_ends, one_token_more, "goes on after the stop token"),
        (tokens_are_counted_by_tier, last_usage, "prompt 0: usage counts"),
        (tokens_are_counted_by_tier, other_tier, "prompt 0: usage counts"),
        (equals_reference, other_tier, "position 23 of prompt 0: the mesh wrote"),
        (equals_reference, one_token_more, "position 24 of prompt 0: the mesh wrote 5 (tier 0), the reference ended"),
        (bad_parameters_are_refused, served, "threshold = -20: was served"),
        (bad_parameters_are_refused, no_range, "the message does not name 0 and 20"),
    ],
)
async def test_a_lie_is_found(
    check: Check,
    doctor: Callable[[Answer], None],
    said: str,
    mesh: MeshProcesses,
    policies: PolicyRegistry,
    reference: SlowMesh,
) -> None:
    async with bench_of(mesh, policies, reference) as (bench, client):
        await bench.ask_main()
        for answer in bench.answers:
            doctor(answer)
        client.doctor = doctor
        finding = await check(bench)
    assert finding.outcome is Outcome.FAIL
    assert said in finding.reason


async def test_neighbours_that_change_are_found(
    mesh: MeshProcesses, policies: PolicyRegistry, reference: SlowMesh
) -> None:
    async with bench_of(mesh, policies, reference) as (bench, client):
        rounds = []

        async def answers(asked: Sequence[Asked]) -> list[Answer]:
            found = await MeshClient.answers(client, asked)
            rounds.append(found)
            if len(rounds) == 2:
                other_tier(found[0])
            return found

        client.answers = answers  # type: ignore[method-assign]
        finding = await neighbours_are_unaffected(bench)
    assert finding.outcome is Outcome.FAIL
    assert "without the policy the mesh wrote" in finding.reason


async def test_kv_that_stays_is_found(
    mesh: MeshProcesses, policies: PolicyRegistry, reference: SlowMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "_FREED_WITHIN_S", 0.0)
    async with bench_of(mesh, policies, reference) as (bench, client):
        client.aborts = False
        finding = await aborts_free_all_tiers(bench)
    assert finding.outcome is Outcome.FAIL
    assert "slm:" in finding.reason
    assert "llm:" in finding.reason

"""`allroads up --single-process` with the real services and the embedded pair, as an operator sees it."""

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from allroads.config import embedded_path
from allroads.mesh.channels import open_channel
from allroads.mesh.wire import common_pb2, gateway_pb2, gateway_pb2_grpc

from .ends import TIMEOUT_S
from .mesh_of_scripts import NAMES
from .running_mesh import Mesh, up

pytestmark = pytest.mark.timeout(300)  # it loads torch, on a machine that may be busy

QUESTIONS = (
    "Aya has 37 apples. Aya buys 58 more apples. How many apples does Aya have now?",
    "Ben has 12 pears and gives 5 of them away. How many pears does Ben have now?",
    "What is 19 times 4?",
)
POLICIES = ("r2r", "slm", "llm")

Call = grpc.aio.UnaryStreamCall[gateway_pb2.GenerateTextRequest, gateway_pb2.GenerateTextResponse]


@asynccontextmanager
async def stub_of(mesh: Mesh) -> "AsyncIterator[gateway_pb2_grpc.GatewayServiceAsyncStub]":
    async with open_channel(mesh.grpc_address, 1 << 20) as channel:
        yield gateway_pb2_grpc.GatewayServiceStub(channel)


def question(
    text: str, policy: str, *, max_tokens: int = 60, ignore_eos: bool = False
) -> gateway_pb2.GenerateTextRequest:
    return gateway_pb2.GenerateTextRequest(
        chat=gateway_pb2.ChatMessages(messages=[gateway_pb2.ChatMessage(role="user", content=text)]),
        max_tokens=max_tokens,
        sampling=common_pb2.SamplingParams(temperature=0.0, ignore_eos=ignore_eos),
        routing=common_pb2.Routing(policy=policy),
    )


async def read_to_end(call: Call) -> int:
    """How many tokens are still to come."""
    num_tokens = 0
    while isinstance(piece := await call.read(), gateway_pb2.GenerateTextResponse):
        num_tokens += len(piece.token_ids)
    return num_tokens


async def answers(mesh: Mesh) -> list[tuple[list[int], list[int]]]:
    """Token ids and tiers of each answer, all asked at once."""

    async def ask(
        stub: "gateway_pb2_grpc.GatewayServiceAsyncStub", text: str, policy: str
    ) -> tuple[list[int], list[int]]:
        token_ids: list[int] = []
        tiers: list[int] = []
        async for piece in stub.Generate(question(text, policy)):
            token_ids += piece.token_ids
            tiers += piece.tiers
        return token_ids, tiers

    async with stub_of(mesh) as stub:
        return await asyncio.gather(*(ask(stub, text, policy) for text in QUESTIONS for policy in POLICIES))


def nothing_is_left(mesh: Mesh, runtime_directory: Path) -> None:
    assert os.listdir(runtime_directory) == []
    assert mesh.regions([mesh.process.pid]) == []


def test_it_answers_as_four_processes_do_and_leaves_nothing(socket_directory: Path) -> None:
    with up(socket_directory) as four:
        four.until_ready()
        expected = asyncio.run(answers(four))
        four.process.send_signal(signal.SIGTERM)
        assert four.process.wait(TIMEOUT_S) == 0
    assert {tier for _, tiers in expected for tier in tiers} == {0, 1}

    with up(socket_directory, "--single-process") as one:
        one.until_ready()
        assert asyncio.run(answers(one)) == expected
        assert one.services() == {}
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(TIMEOUT_S) == 0
        log = one.rest_of_log()
    nothing_is_left(one, socket_directory)

    assert re.findall(r'"(?:starting|stopping) \w+"', log) == [
        *(f'"starting {name}"' for name in NAMES),
        *(f'"stopping {name}"' for name in reversed(NAMES)),
    ]
    assert "tensors to router go through process memory" in log
    for name in NAMES:
        assert re.search(rf"^{name:7} \| time=\S+Z level=info service={name} logger=\S+ message=\S+", log, re.MULTILINE)
    # Code that all share speaks for the service that runs it.
    assert re.search(r'^slm .* logger=mesh.stream message="llm: connected"', log, re.MULTILINE)
    assert re.search(r'^gateway .* logger=mesh.stream message="slm: connected"', log, re.MULTILINE)


async def test_an_open_stream_gets_its_grace(socket_directory: Path) -> None:
    with up(socket_directory, "--single-process", ALLROADS_GRACE_S=str(TIMEOUT_S)) as mesh:
        await asyncio.to_thread(mesh.until_ready)
        async with stub_of(mesh) as stub:
            calls = [stub.Generate(question(QUESTIONS[0], "r2r", max_tokens=400, ignore_eos=True)) for _ in range(2)]
            pieces = [await call.read() for call in calls]
            mesh.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(mesh.until_logged, "stopping gateway")
            for call, first in zip(calls, pieces, strict=True):
                assert isinstance(first, gateway_pb2.GenerateTextResponse)
                assert len(first.token_ids) + await read_to_end(call) == 400
        assert await asyncio.to_thread(mesh.process.wait, TIMEOUT_S) == 0
    nothing_is_left(mesh, socket_directory)


async def test_a_second_signal_ends_it_at_once(socket_directory: Path) -> None:
    with up(socket_directory, "--single-process", ALLROADS_GRACE_S="1000") as mesh:
        await asyncio.to_thread(mesh.until_ready)
        async with stub_of(mesh) as stub:
            call = stub.Generate(question(QUESTIONS[0], "r2r", max_tokens=1500, ignore_eos=True))
            assert await call.read() is not grpc.aio.EOF
            mesh.process.send_signal(signal.SIGINT)
            await asyncio.to_thread(mesh.until_logged, "stopping gateway")
            mesh.process.send_signal(signal.SIGINT)
            with pytest.raises(grpc.aio.AioRpcError):
                await read_to_end(call)
        assert await asyncio.to_thread(mesh.process.wait, TIMEOUT_S) == 0
        assert "leaving gateway behind" in mesh.rest_of_log()
    nothing_is_left(mesh, socket_directory)


def test_a_service_that_cannot_start_ends_all_with_its_reason(socket_directory: Path, tmp_path: Path) -> None:
    router = shutil.copytree(embedded_path("router"), tmp_path / "router")
    manifest = json.loads((router / "manifest.json").read_text())
    (router / "manifest.json").write_text(json.dumps({**manifest, "weights_sha256": "0" * 64}))
    with up(socket_directory, "--single-process", f"--router={router}") as mesh:
        assert mesh.process.wait(2 * TIMEOUT_S) == 2
        log = mesh.rest_of_log()
    assert re.search(
        r"^error: router could not start: .* is not the file that manifest.json was written for$", log, re.MULTILINE
    )
    assert re.findall(r'"stopping \w+"', log) == ['"stopping llm"']
    nothing_is_left(mesh, socket_directory)

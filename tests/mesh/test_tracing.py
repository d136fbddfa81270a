"""C54: one trace across gateway, slm and llm, over their real wire; and clients that leave leave nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from allroads.config import load_settings
from allroads.gateway.service import serving
from allroads.mesh.channels import open_channel
from allroads.mesh.trace_context import TraceContext
from allroads.mesh.wire import common_pb2, gateway_pb2, gateway_pb2_grpc

from ..doubles.collector import Collector, Seen, collector
from ..doubles.home_client import HomeClient, request
from ..doubles.processes import MeshProcesses
from ..doubles.tier_probe import free_tier_tokens

TOKENS = 12
LONG = 900


@asynccontextmanager
async def traced_mesh(
    pair: Path, directory: Path
) -> "AsyncIterator[tuple[MeshProcesses, httpx.AsyncClient, gateway_pb2_grpc.GatewayServiceAsyncStub]]":
    """Services as processes, the gateway here. At the end all have sent their spans."""
    paths: dict[str, dict[str, Any]] = {name: {"path": str(pair / name)} for name in ("slm", "llm", "router")}
    mesh = MeshProcesses(load_settings(overrides=paths | {"gateway": {"port": 0, "grpc_port": 0}}), directory)
    mesh.start("llm", "router", "slm")
    try:
        await mesh.until_ready("slm")
        async with (
            serving(mesh.settings) as running,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.rest_port}", timeout=90) as http,
            open_channel(f"127.0.0.1:{running.grpc_port}", 1 << 20) as channel,
        ):
            while (await http.get("/ready")).status_code != 200:
                pass
            yield mesh, http, gateway_pb2_grpc.GatewayServiceStub(channel)
    finally:
        codes = await asyncio.to_thread(mesh.stop)
    assert set(codes.values()) == {0}, codes


async def ask(http: httpx.AsyncClient, policy: str, sent: TraceContext, **fields: Any) -> None:
    body = {"model": "allroads", "prompt": "hello", "max_tokens": TOKENS, "ignore_eos": True}
    body |= {"temperature": 0, "routing": {"policy": policy}, **fields}
    reply = await http.post("/v1/completions", json=body, headers={"traceparent": sent.traceparent})
    assert reply.status_code == 200, reply.text


def chain_of(traces: Collector, sent: TraceContext) -> list[Seen]:
    """A trace's spans but the wait in line: each must be the child of the one before."""
    spans = {span.parent_id: span for span in traces.of(f"{sent.trace_id:032x}") if span.name != "queue"}
    chain, parent_id = [], f"{sent.span_id:016x}"
    while (span := spans.pop(parent_id, None)) is not None:
        chain.append(span)
        parent_id = span.span_id
    assert not spans, "no span is anybody else's child"
    return chain


async def answers(mesh: MeshProcesses, traceparent: str) -> list[tuple[list[int], list[int]]]:
    """Tokens and who wrote them, of some requests to the home."""
    asked = [
        request([5, 6, 7, 8], policy, temperature=temperature, seed=3, ignore_eos=True)
        for policy in ("r2r", "entropy", "lossless", "llm")
        for temperature in (0.0, 1.0)
    ]
    for one in asked:
        one.traceparent = traceparent
    async with HomeClient(mesh.settings.slm.address) as client:
        return [(reply.token_ids, reply.tiers) for reply in await client.answer(*asked)]


async def test_one_trace_goes_through_all_services(
    mesh: MeshProcesses, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are those of the mesh of the other tests, which has no traces."""
    sent = {
        name: TraceContext.new(number, is_sampled=name != "unsampled")
        for number, name in enumerate(("whole", "stream", "grpc", "slm", "echo", "direct", "unsampled"), 1)
    }
    with collector() as traces:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", traces.url)
        async with traced_mesh(tiny_pair, tmp_path / "m") as (traced, http, stub):
            free = await free_tier_tokens(traced.settings.llm.address)
            await ask(http, "r2r", sent["whole"])
            await ask(http, "llm", sent["stream"], stream=True)
            await ask(http, "slm", sent["slm"])
            await ask(http, "slm", sent["echo"], echo=True, logprobs=1, max_tokens=0)
            await ask(http, "r2r", sent["unsampled"])
            call = gateway_pb2.GenerateTextRequest(
                prompt="hello",
                max_tokens=TOKENS,
                sampling=common_pb2.SamplingParams(temperature=0.0, ignore_eos=True),
                routing=common_pb2.Routing(policy="r2r"),
            )
            async for _ in stub.Generate(call, metadata=(("traceparent", sent["grpc"].traceparent),)):
                pass
            assert await answers(traced, sent["direct"].traceparent) == await answers(mesh, "")
            gone = TraceContext.new(99, is_sampled=True)
            for stream in (False, True):
                leaving = asyncio.create_task(ask(http, "r2r", gone, stream=stream, max_tokens=LONG))
                while await free_tier_tokens(traced.settings.llm.address) == free:
                    pass
                leaving.cancel()
                assert isinstance((await asyncio.gather(leaving, return_exceptions=True))[0], asyncio.CancelledError)
                while await free_tier_tokens(traced.settings.llm.address) != free:
                    pass

    for name in ("whole", "stream", "grpc"):
        outer, home, large = chain_of(traces, sent[name])
        assert [span.service for span in (outer, home, large)] == ["allroads-gateway", "allroads-slm", "allroads-llm"]
        assert [span.name for span in (home, large)] == ["slm", "llm"]
        assert home.attributes["allroads.tokens"] == outer.attributes["allroads.tokens"]
        assert sum(home.attributes["allroads.tokens"]) == TOKENS
        assert large.attributes["allroads.visits"] == home.attributes["allroads.hand_offs"] > 0
        assert large.attributes["allroads.positions"] > 0
        assert not any(span.is_fault for span in (outer, home, large))
    routed = chain_of(traces, sent["whole"])[1].attributes
    assert routed["allroads.policy"] == "r2r"
    assert routed["allroads.steps"] >= routed["allroads.scored_tokens"] > 0
    assert routed["allroads.score_wait_s"] > 0
    assert [span.name for span in chain_of(traces, sent["slm"])] == ["POST /v1/completions", "slm"]
    read = chain_of(traces, sent["echo"])
    assert [span.service for span in read] == ["allroads-gateway", "allroads-slm", "allroads-llm"]
    assert [span.name for span in read[1:]] == ["read prompt"] * 2
    assert traces.of(f"{sent['unsampled'].trace_id:032x}") == []
    left = [span for span in traces.of(f"{gone.trace_id:032x}") if span.name in ("slm", "llm")]
    assert sorted(span.name for span in left) == ["llm", "llm", "slm", "slm"]
    assert [span.attributes["allroads.finish_reason"] for span in left if span.name == "slm"] == ["cancelled"] * 2
    # Requests by which services try each other out at start have none.
    assert {span.trace_id for span in traces.spans} <= {f"{s.trace_id:032x}" for s in (*sent.values(), gone)}

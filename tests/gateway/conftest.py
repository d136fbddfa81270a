import json
import math
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from allroads.config import GatewaySettings, HomeSettings, MeshSettings, embedded_path
from allroads.gateway.gateway import Gateway
from allroads.gateway.grpc_api import SERVICE_NAME
from allroads.gateway.service import RunningGateway, serving
from allroads.gateway.text.tokenizer import TextTokenizer, load_tokenizer
from allroads.mesh.channels import open_channel
from allroads.mesh.wire import gateway_pb2_grpc, model_pb2
from allroads.vocabulary import load_vocabulary
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.doubles.scripted_home import MAX_MESSAGE_BYTES, Script, ScriptedHome

WINDOW = 512
TIER_NAMES = ("slm", "llm")
MODEL = "allroads"


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    return load_tokenizer(embedded_path("llm"))


def describe_mesh(
    eos_token_ids: tuple[int, ...], window: int, tier_names: Sequence[str] = TIER_NAMES
) -> model_pb2.MeshDescription:
    parameter = model_pb2.ParameterDescription
    return model_pb2.MeshDescription(
        max_context_tokens=window,
        eos_token_ids=eos_token_ids,
        default_policy="r2r",
        policies=[
            model_pb2.PolicyDescription(
                name="r2r",
                scorer="r2r",
                parameters=[parameter(name="threshold", minimum=0.0, maximum=1.0, default_values=[0.5])],
            ),
            model_pb2.PolicyDescription(name="random", parameters=[parameter(name="share", minimum=0.0, maximum=1.0)]),
            model_pb2.PolicyDescription(
                name="speculative",
                parameters=[
                    parameter(name="draft_tokens", minimum=1, maximum=16, default_values=[8], is_whole=True),
                    parameter(name="patience", minimum=0.0, maximum=math.inf, default_values=[1.5]),
                ],
            ),
            model_pb2.PolicyDescription(
                name="me",
                parameters=[
                    parameter(
                        name="weights", minimum=0.0, maximum=1000.0, default_values=[0.5, 0.3, 0.2], per_tier=True
                    )
                ],
            ),
            model_pb2.PolicyDescription(name="slm"),
        ],
        tier_names=tier_names,
        model_ids=[f"{name}-model" for name in tier_names],
        num_parameters=[10**tier for tier in range(len(tier_names))],
    )


@dataclass
class Served:
    """A gateway that really listens, its scripted home, and clients of both APIs."""

    home: ScriptedHome
    settings: MeshSettings
    running: RunningGateway
    http: httpx.AsyncClient
    stub: "gateway_pb2_grpc.GatewayServiceAsyncStub"
    channel: grpc.aio.Channel

    @property
    def gateway(self) -> Gateway:
        return self.running.gateway

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.running.rest_port}"

    async def until_ready(self, ready: bool) -> None:
        """Watch the gateway's health until it says so."""
        wanted = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        watch = health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        while (await watch.read()).status != wanted:
            pass
        watch.cancel()

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        return await self.http.post(path, json={"model": MODEL, **fields})

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/chat/completions", **({"messages": [{"role": "user", "content": "x"}], **fields}))

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/completions", **({"prompt": "x", **fields}))

    async def metric(self, name: str) -> float:
        """A metric that has no labels."""
        (line,) = [line for line in (await self.http.get("/metrics")).text.splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[1])

    async def chunks(self, **fields: Any) -> list[Any]:
        """Every event of a streamed chat; the last is "[DONE]"."""
        return events(await self.chat(stream=True, **fields))


def events(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]] + ["[DONE]"]


def joined(chunks: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content", "") for chunk in chunks if chunk != "[DONE]" for choice in chunk["choices"]
    )


def finish_reasons(chunks: list[Any]) -> list[str]:
    choices = [choice for chunk in chunks if chunk != "[DONE]" for choice in chunk["choices"]]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]


@asynccontextmanager
async def gateway_over(
    script: Script | Callable[[model_pb2.OpenRequest], Script],
    *,
    home_starts: bool = True,
    home_fits: bool = True,
    tokenizer_hash: str | None = None,
    path: Path | None = None,
    grace_s: float = 5.0,
    window: int = WINDOW,
    tier_names: Sequence[str] = TIER_NAMES,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    **options: Any,
) -> AsyncIterator[Served]:
    """A gateway over a home with a script; `options` are the gateway's settings. One that fits makes it ready."""
    vocabulary = load_vocabulary(embedded_path("llm"))
    home = ScriptedHome(
        tokenizer_hash or vocabulary.hash,
        describe_mesh(vocabulary.eos_token_ids, window, tier_names),
        script if callable(script) else lambda _: script,
    )
    async with AsyncExitStack() as stack:
        # pytest's own paths may be longer than a socket's may be.
        address = f"unix:{stack.enter_context(tempfile.TemporaryDirectory(prefix='gw'))}/slm.sock"
        if home_starts:
            await home.start(address)
        stack.push_async_callback(home.die)
        settings = MeshSettings(
            slm=HomeSettings(path=path or embedded_path("llm"), address=address),
            gateway=GatewaySettings(**{"port": 0, "grpc_port": 0, "piece_interval_s": 0, **options}),
            max_message_bytes=max_message_bytes,
            grace_s=grace_s,
        )
        running = await stack.enter_async_context(serving(settings))
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.rest_port}", timeout=60, limits=_NO_LIMITS)
        )
        channel = open_channel(f"127.0.0.1:{running.grpc_port}", MAX_MESSAGE_BYTES)
        stack.push_async_callback(channel.close)
        served = Served(home, settings, running, http, gateway_pb2_grpc.GatewayServiceStub(channel), channel)
        if home_starts and home_fits:
            await served.until_ready(True)
        yield served


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start gateways as `gateway_over` does; they end with the test."""
    async with AsyncExitStack() as stack:

        async def start(script: Script | Callable[[model_pb2.OpenRequest], Script], **options: Any) -> Served:
            return await stack.enter_async_context(gateway_over(script, **options))

        yield start


_NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None)

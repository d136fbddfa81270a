"""Requests with and without a key, over REST and gRPC."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import openai
import pytest
from allroads.config import LimitSettings
from allroads.gateway.openai.security_layers import OPEN_PATHS
from allroads.gateway.security import key_ring
from allroads.gateway.security.key_changes import add_key, revoke_key
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import gateway_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served
from tests.gateway.test_admission_door import WHOLE, connect

GENERATE = gateway_pb2.GenerateTextRequest(prompt="x")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(key_ring, "_POLL_S", 0.01)
    return tmp_path / "keys.yaml"


@pytest.fixture
def key(path: Path) -> str:
    return add_key(path, "alice")


@pytest.fixture
async def served(serve: Serve, path: Path, key: str, tokenizer: TextTokenizer) -> Served:
    return await serve(Script(await tokenizer.encode_prompt("12")), keys_path=path)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def assert_refused(response: httpx.Response) -> None:
    assert response.status_code == 401, response.text
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)


async def test_answers_need_a_key(served: Served, key: str) -> None:
    body = {"model": MODEL, "prompt": "x"}
    for headers in ({}, bearer("ar-wrong"), {"x-api-key": "ar-wrong"}, {"authorization": f"Basic {key}"}):
        assert_refused(await served.http.post("/v1/completions", json=body, headers=headers))
        # Not whole, so past the doorstep.
        chunked = await served.http.post("/v1/completions", content=_parts(), headers=headers)
        assert_refused(chunked)
    for headers in (bearer(key), {"x-api-key": key}):
        response = await served.http.post("/v1/completions", json=body, headers=headers)
        assert response.json()["choices"][0]["text"] == "12"
    assert len(served.home.opens) == 2


async def _parts() -> AsyncIterator[bytes]:
    yield b'{"model": "allroads", '
    yield b'"prompt": "x"}'


async def test_openai_knows_the_error(served: Served, key: str) -> None:
    client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="not known"):
        await client.models.list()
    async with client.with_options(api_key=key) as right:
        assert [model.id async for model in right.models.list()] == [MODEL]


async def test_only_what_tells_nothing_is_open(served: Served, key: str) -> None:
    for path in OPEN_PATHS:
        assert (await served.http.get(path)).status_code == 200, path
    for path in (
        "/v1/models",
        "/v1/models/x",
        "/v1/admission",
        "/metrics",
        "/nowhere",
        "/health/",
        "/docs",
    ):
        assert_refused(await served.http.get(path))
        assert (await served.http.get(path, headers=bearer(key))).status_code != 401


async def test_metrics_may_be_open(serve: Serve, path: Path, key: str) -> None:
    served = await serve(Script([]), keys_path=path, metrics_without_key=True)
    assert (await served.http.get("/metrics")).status_code == 200
    assert_refused(await served.http.get("/v1/models"))


async def test_without_a_file_nobody_needs_a_key(serve: Serve) -> None:
    served = await serve(Script([]))
    assert (await served.http.get("/v1/models", headers=bearer("any"))).status_code == 200


async def test_calls_need_a_key(served: Served, key: str) -> None:
    for metadata in (None, (("authorization", "Bearer wrong"),), (("x-api-key", "wrong"),)):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await served.stub.ListModels(gateway_pb2.ListModelsRequest(), metadata=metadata)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await served.stub.Generate(GENERATE, metadata=metadata).read()
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    for metadata in ((("authorization", f"Bearer {key}"),), (("x-api-key", key),)):
        answer = await served.stub.ListModels(gateway_pb2.ListModelsRequest(), metadata=metadata)
        assert [model.id for model in answer.models] == [MODEL]
        pieces = [piece.text_delta async for piece in served.stub.Generate(GENERATE, metadata=metadata)]
        assert "".join(pieces) == "12"


async def test_health_needs_none_and_reflection_does(served: Served, key: str) -> None:
    health = health_pb2_grpc.HealthStub(served.channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await reflection.ServerReflectionInfo(iter([question])).read()
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    call = reflection.ServerReflectionInfo(iter([question]), metadata=(("x-api-key", key),))
    assert [answer.HasField("list_services_response") async for answer in call] == [True]


async def test_keys_come_and_go_while_it_runs(served: Served, path: Path, key: str) -> None:
    new = add_key(path, "bob")
    while (await served.http.get("/v1/models", headers=bearer(new))).status_code == 401:
        pass
    revoke_key(path, "alice")
    while (await served.http.get("/v1/models", headers=bearer(key))).status_code == 200:
        pass
    assert (await served.http.get("/v1/models", headers=bearer(new))).status_code == 200


async def test_a_key_has_its_own_limit_of_open_answers(serve: Serve, path: Path, tokenizer: TextTokenizer) -> None:
    few, many = add_key(path, "few", max_running=2), add_key(path, "many")
    hold = asyncio.Event()
    served = await serve(Script(await tokenizer.encode_prompt("1"), hold=hold), keys_path=path)

    async def ask(key: str, prompt: str | list[str] = "x") -> httpx.Response:
        return await served.http.post(
            "/v1/completions", json={"model": MODEL, "prompt": prompt}, headers=bearer(key), timeout=60
        )

    both = asyncio.create_task(ask(few, ["x", "y"]))
    await served.home.until(lambda: len(served.home.running) == 2)
    refused = await ask(few)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "2 answers open at once" in refused.json()["error"]["message"]
    assert (await ask(few, ["x", "y", "z"])).status_code == 429
    call = served.stub.Generate(GENERATE, metadata=(("x-api-key", few),))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    other = asyncio.create_task(ask(many))
    await served.home.until(lambda: len(served.home.running) == 3)
    hold.set()
    assert (await both).status_code == (await other).status_code == 200
    assert (await ask(few)).status_code == 200
    assert served.gateway.door.limits.num_open("few") == 0
    assert (await ask(few, ["x", "y", "z"])).status_code == 400


async def test_a_key_has_its_own_limit_of_starts(serve: Serve, path: Path, tokenizer: TextTokenizer) -> None:
    slow, fast = add_key(path, "slow", requests_per_minute=1), add_key(path, "fast")
    served = await serve(Script(await tokenizer.encode_prompt("1")), keys_path=path)
    body = {"model": MODEL, "prompt": "x"}
    statuses = [
        (await served.http.post("/v1/completions", json=body, headers=bearer(key))).status_code
        for key in (slow, slow, fast, fast)
    ]
    assert statuses == [200, 429, 200, 200]


async def test_a_connection_goes_on_after_a_401(served: Served, key: str) -> None:
    connection = await connect(served)
    assert await connection.ask(WHOLE) == 401
    with_key = WHOLE.replace(b"host: x", b"host: x\r\nx-api-key: " + key.encode())
    assert await connection.ask(with_key) == 200
    assert await connection.ask(WHOLE) == 401
    await connection.close()


async def test_pages_of_other_origins_need_leave(serve: Serve) -> None:
    served = await serve(Script([]))
    response = await served.http.get("/health", headers={"origin": "https://chat.example.com"})
    assert not [name for name in response.headers if name.startswith("access-control")]


async def test_pages_of_origins_that_are_named_may_ask(
    serve: Serve, path: Path, key: str, tokenizer: TextTokenizer
) -> None:
    origin = "https://chat.example.com"
    script = Script(await tokenizer.encode_prompt("1"))
    served = await serve(script, keys_path=path, cors_origins=(origin,), limits=LimitSettings(max_prompt_tokens=8))
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}
    leave = await served.http.options("/v1/completions", headers={"origin": origin, **asked})
    assert leave.status_code == 200
    assert leave.headers["access-control-allow-origin"] == origin
    assert "authorization" in leave.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in leave.headers
    body = {"model": MODEL, "prompt": "x"}
    for headers, status in ((bearer(key), 200), ({}, 401)):
        response = await served.http.post("/v1/completions", json=body, headers={"origin": origin, **headers})
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (status, origin)
    other = await served.http.post(
        "/v1/completions", json=body, headers={"origin": "https://evil.example", **bearer(key)}
    )
    assert "access-control-allow-origin" not in other.headers
    long = await served.http.post("/v1/completions", json={**body, "prompt": "1 " * 40}, headers=bearer(key))
    assert long.status_code == 400
    assert long.json()["error"]["param"] == "prompt"
    assert "may have 8 here" in long.json()["error"]["message"]

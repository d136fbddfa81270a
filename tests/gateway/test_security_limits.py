"""What a stranger may cost: heads, bodies that do not come, connections, pings."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from allroads.config import LimitSettings, load_settings
from allroads.errors import StartupError
from allroads.gateway.security.grpc_guard import outside_options
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.channels import KEEPALIVE_TIME_MS, open_channel
from allroads.mesh.wire import gateway_pb2, gateway_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve, Served
from tests.gateway.test_admission_door import BODY, HEAD, LENGTH, WHOLE, Connection, connect

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n"
SOON = 0.05
Limited = Callable[..., Any]


@asynccontextmanager
async def connected(served: Served) -> AsyncIterator[Connection]:
    connection = await connect(served)
    try:
        yield connection
    finally:
        await connection.close()


def another_channel(served: Served) -> grpc.aio.Channel:
    return open_channel(f"127.0.0.1:{served.running.grpc_port}", 1 << 20)


async def assert_refused(connection: Connection, status: int, words: str) -> None:
    found, body = await connection.read()
    assert found == status, body
    assert words in json.loads(body)["error"]["message"]
    assert await connection.is_closed()


@pytest.fixture
def limited(serve: Serve, tokenizer: TextTokenizer) -> Limited:
    async def start(**limits: Any) -> Served:
        return await serve(Script(await tokenizer.encode_prompt("12")), limits=LimitSettings(**limits))

    return start


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
async def test_a_connection_on_which_nothing_is_asked_is_closed(limited: Limited, sent: bytes) -> None:
    async with connected(await limited(head_timeout_s=SOON)) as connection:
        connection.writer.write(sent)
        assert await connection.is_closed()


@pytest.mark.parametrize("sent", [b"GET", HEALTH, HEAD + LENGTH])
async def test_a_head_that_does_not_come_is_not_waited_for(limited: Limited, sent: bytes) -> None:
    async with connected(await limited(head_timeout_s=SOON)) as connection:
        connection.writer.write(sent)
        await assert_refused(connection, 408, "head did not arrive within 0.05 s")


async def test_a_head_that_drips_is_not_waited_for(limited: Limited) -> None:
    async with connected(await limited(head_timeout_s=SOON)) as connection:

        async def drip() -> None:
            while True:
                connection.writer.write(b"x: y\r\n")
                await asyncio.sleep(SOON / 20)

        connection.writer.write(HEALTH)
        dripping = asyncio.create_task(drip())
        await assert_refused(connection, 408, "head did not arrive")
        dripping.cancel()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models"])
@pytest.mark.parametrize("sent", [b"", b"{"])
async def test_a_body_that_does_not_come_is_not_waited_for(limited: Limited, path: str, sent: bytes) -> None:
    served = await limited(body_timeout_s=SOON)
    async with connected(served) as connection:
        connection.writer.write(HEAD.replace(b"/v1/completions", path.encode()) + LENGTH + b"\r\n" + sent)
        status, body = await connection.read()
        if path == "/v1/models":
            # Answered at once, as it is not asked in that way. What it still owes is not waited for either.
            assert status == 405
        else:
            assert status == 408
            assert "body did not arrive within 0.05 s" in json.loads(body)["error"]["message"]
        assert await connection.is_closed()
    assert served.gateway.door.limiter.num_running == 0


async def test_a_connection_at_rest_is_kept(limited: Limited) -> None:
    """No time runs between requests, nor while an answer is made; who was refused at the doorstep rests as well."""
    async with connected(await limited(head_timeout_s=SOON, body_timeout_s=SOON)) as connection:
        for data, status in ((WHOLE, 200), (HEALTH + b"\r\n", 200), (WHOLE.replace(b'"x"', b"[] "), 400)):
            assert await connection.ask(data) == status
            await asyncio.sleep(2 * SOON)
        assert await connection.ask(WHOLE) == 200


async def test_an_answer_may_take_its_time(serve: Serve, tokenizer: TextTokenizer) -> None:
    hold = asyncio.Event()
    script = Script(await tokenizer.encode_prompt("1"), hold=hold)
    served = await serve(script, limits=LimitSettings(head_timeout_s=SOON, body_timeout_s=SOON))
    async with connected(served) as connection:
        answer = asyncio.create_task(connection.ask())
        await served.home.until(lambda: bool(served.home.running))
        await asyncio.sleep(2 * SOON)
        hold.set()
        assert await answer == 200


async def test_a_head_that_is_too_large_is_refused(limited: Limited) -> None:
    served = await limited(max_head_bytes=1000, max_headers=10)
    for sent, words in (
        (HEALTH + b"x: " + b"y" * 2000 + b"\r\n\r\n", "more than 1000 bytes"),
        (HEALTH + b"x: " + b"y" * 2000, "more than 1000 bytes"),
        (b"GET /" + b"y" * 2000, "more than 1000 bytes"),
        (b"GET /health?" + b"y" * 2000 + b" HTTP/1.1\r\n\r\n", "more than 1000 bytes"),
        (HEALTH + b"x: y\r\n" * 11, "more than 10 headers"),
        (HEALTH + b"x: y\r\n" * 10 + b"\r\n", "more than 10 headers"),
        (HEAD + LENGTH + b"z: " + b"y" * 2000 + b"\r\n\r\n" + BODY, "more than 1000 bytes"),
    ):
        async with connected(served) as connection:
            connection.writer.write(sent)
            await assert_refused(connection, 431, words)
    async with connected(served) as connection:
        assert await connection.ask(HEALTH + b"x: y\r\n" * 9 + b"\r\n") == 200
        assert (
            await connection.ask(
                WHOLE.replace(b'"x"', b'"' + b"1" * 400 + b'"').replace(
                    LENGTH, b"content-length: %d\r\n" % (len(BODY) + 399)
                )
            )
            == 200
        )
    assert served.gateway.door.limiter.num_running == 0


async def test_what_is_no_request_is_refused_as_all_is(limited: Limited) -> None:
    async with connected(await limited()) as connection:
        connection.writer.write(b"\x16\x03\x01\x02\x00\x01")
        await assert_refused(connection, 400, "Invalid HTTP request")


async def test_connections_are_counted(limited: Limited) -> None:
    served = await limited(max_connections=2)
    async with connected(served) as first:
        assert await first.ask(HEALTH + b"\r\n") == 200
        async with connected(served) as second:
            assert await second.ask(HEALTH + b"\r\n") == 200
            async with connected(served) as third:
                await assert_refused(third, 503, "2 connections already")
            assert await second.ask(HEALTH + b"\r\n") == 200
        async with connected(served) as fourth:
            # The second may not be gone yet on the other side.
            while await _is_refused(fourth):
                fourth = await connect(served)  # noqa: PLW2901
            await fourth.close()


async def _is_refused(connection: Connection) -> bool:
    return await connection.ask(HEALTH + b"\r\n") == 503


async def test_calls_of_one_connection_are_counted(serve: Serve, tokenizer: TextTokenizer) -> None:
    hold = asyncio.Event()
    script = Script(await tokenizer.encode_prompt("1"), hold=hold)
    served = await serve(script, limits=LimitSettings(max_streams=3))
    async with another_channel(served) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        calls = [stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x")) for _ in range(5)]
        reads = [asyncio.ensure_future(call.read()) for call in calls]
        await served.home.until(lambda: len(served.home.running) == 3)
        hold.set()
        await asyncio.gather(*reads)
    assert len(served.home.opens) == 5


async def test_metadata_is_limited(limited: Limited) -> None:
    served = await limited(max_head_bytes=4096)
    request = gateway_pb2.ListModelsRequest()
    await served.stub.ListModels(request, metadata=(("x", "y" * 2000),))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await served.stub.ListModels(request, metadata=(("x", "y" * 5000),))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await served.stub.ListModels(request)


async def test_grpc_connections_are_counted(limited: Limited) -> None:
    served = await limited(max_connections=1)
    request = gateway_pb2.ListModelsRequest()
    await served.stub.ListModels(request)
    async with another_channel(served) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await gateway_pb2_grpc.GatewayServiceStub(channel).ListModels(request)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    await served.stub.ListModels(request)


async def test_who_pings_all_the_time_is_cut_off(limited: Limited) -> None:
    served = await limited(min_ping_interval_s=600)
    options = [("grpc.keepalive_time_ms", 20), ("grpc.http2.max_pings_without_data", 0)]
    address = f"127.0.0.1:{served.running.grpc_port}"
    async with grpc.aio.insecure_channel(address, options=[*options, ("grpc.use_local_subchannel_pool", 1)]) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        with pytest.raises(grpc.aio.AioRpcError, match=r"(?i)too.many.pings"):
            await watch.read()


def test_our_own_clients_ping_seldom_enough() -> None:
    """C18: the least time between pings is said, and it is less than what our channels leave between theirs."""
    options = dict(outside_options(LimitSettings()))
    shortest_ms = options["grpc.http2.min_ping_interval_without_data_ms"]
    assert isinstance(shortest_ms, int)
    assert shortest_ms <= 10_000 < KEEPALIVE_TIME_MS
    assert options["grpc.keepalive_permit_without_calls"] == 1


@pytest.mark.parametrize(
    "origin", ["chat.example.com", "https://a/", "https://a/b", "null", "*.example.com", "ftp://a", "https://", ""]
)
def test_an_origin_is_a_scheme_and_a_host(origin: str) -> None:
    with pytest.raises(StartupError, match="without a path") as error:
        load_settings(overrides={"gateway": {"cors_origins": [origin]}})
    assert error.value.field == "gateway.cors_origins.0"
    settings = load_settings(overrides={"gateway": {"cors_origins": ["*", "http://localhost:3000", "https://[::1]:1"]}})
    assert len(settings.gateway.cors_origins) == 3

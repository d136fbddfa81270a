"""C18: who is quiet stays connected, who is dead is noticed, and all services agree on how often to ask."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from allroads.mesh import channels
from allroads.mesh.channels import channel_options, open_channel, server_options
from allroads.mesh.server import ServiceServer
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICES = Path(channels.__file__).parents[1]
LIMIT = 1 << 20
QUIET_S = 0.5
WHOLE = health_pb2.HealthCheckRequest()


def watch_of(channel: grpc.aio.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(WHOLE)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """Of a service as the mesh has them."""
    server = ServiceServer([], max_message_bytes=LIMIT)
    with tempfile.TemporaryDirectory(prefix="roads-") as directory:
        await server.start(f"unix:{directory}/one.sock")
        yield f"unix:{directory}/one.sock"
        await server.stop(0)


def test_a_server_bears_what_its_callers_send() -> None:
    client, server = dict(channel_options(LIMIT)), dict(server_options(LIMIT))
    assert int(server["grpc.http2.min_ping_interval_without_data_ms"]) <= int(client["grpc.keepalive_time_ms"])
    assert server["grpc.http2.max_ping_strikes"] == 0
    assert client["grpc.http2.max_pings_without_data"] == 0
    assert client["grpc.keepalive_permit_without_calls"] == 1
    for options in (client, server):
        assert int(options["grpc.keepalive_timeout_ms"]) <= int(options["grpc.keepalive_time_ms"]) <= 20_000


def test_servers_and_channels_are_made_in_one_place_each() -> None:
    """Whoever made one elsewhere would have options of its own; both clients take theirs from `client/connection`."""
    makers = {
        path.relative_to(SERVICES).as_posix()
        for path in SERVICES.rglob("*.py")
        if re.search(r"\bgrpc(\.aio)?\.(server|insecure_channel|secure_channel)\(", path.read_text())
    }
    assert makers == {"mesh/server.py", "mesh/channels.py", "client/async_client.py", "client/sync_client.py"}


async def test_pings_without_data_cut_nobody_off(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more often than ours: on an idle channel and on one whose stream says nothing, as in a long prefill."""
    monkeypatch.setattr(channels, "KEEPALIVE_TIME_MS", 10)
    async with open_channel(address, LIMIT) as idle, open_channel(address, LIMIT) as quiet:
        await health_pb2_grpc.HealthStub(idle).Check(WHOLE)
        watch = watch_of(quiet)
        await watch.read()
        reading = asyncio.ensure_future(watch.read())
        # There is no event for what does not happen.
        done, _ = await asyncio.wait({reading}, timeout=QUIET_S)
        assert not done
        for channel in (idle, quiet):
            assert channel.get_state() is grpc.ChannelConnectivity.READY
            await health_pb2_grpc.HealthStub(channel).Check(WHOLE)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await reading


@asynccontextmanager
async def wire_to(address: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """An address that leads there until the event is set; then nothing passes and nobody is told."""
    cut = asyncio.Event()
    ways: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not cut.is_set():
                writer.write(data)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        writers.extend((writer, there[1]))
        ways.update(asyncio.create_task(way) for way in (pass_on(reader, there[1]), pass_on(there[0], writer)))

    with tempfile.TemporaryDirectory(prefix="roads-") as directory:
        server = await asyncio.start_unix_server(connect, f"{directory}/wire.sock")
        try:
            yield f"unix:{directory}/wire.sock", cut
        finally:
            server.close()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for writer in writers:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def test_a_dead_peer_is_noticed_though_nobody_hangs_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the time of both settings, here made short: a machine that lost its power closes no connection."""
    monkeypatch.setattr(channels, "KEEPALIVE_TIME_MS", 200)
    monkeypatch.setattr(channels, "KEEPALIVE_TIMEOUT_MS", 200)
    async with wire_to(address) as (there, cut), open_channel(there, LIMIT) as channel:
        watch = watch_of(channel)
        await watch.read()
        cut.set()
        with pytest.raises(grpc.aio.AioRpcError) as loss:
            await asyncio.wait_for(watch.read(), 3)
        assert loss.value.code() is grpc.StatusCode.UNAVAILABLE

"""Keys, TLS and the options of the channel."""

import asyncio
import subprocess
from pathlib import Path

import grpc
import pytest
from allroads.client import Client, Retry, Tls
from allroads.client.connection import channel_options
from allroads.config import LimitSettings
from allroads.errors import InvalidArgument, ResourceExhausted, Unavailable

from ..doubles.scripted_gateway import FINE, Act, scripted_gateway
from ..doubles.scripted_home import Script
from ..gateway.conftest import Serve
from .conftest import NO_RETRY, Connect


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority (`ca.pem`), and two that it vouches for (`gateway`, `client`), each with its key."""
    folder = tmp_path_factory.mktemp("certificates")
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    _openssl(*new, "-subj", "/CN=ca", "-keyout", folder / "ca.key", "-out", folder / "ca.pem")
    for name in ("gateway", "client"):
        _openssl(
            *new, "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}.test", "-CA", folder / "ca.pem",
            "-CAkey", folder / "ca.key", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem",
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
    return folder


def _server(folder: Path, *, asks_for_certificate: bool) -> grpc.ServerCredentials:
    pair = (folder / "gateway.key").read_bytes(), (folder / "gateway.pem").read_bytes()
    ca = (folder / "ca.pem").read_bytes()
    return grpc.ssl_server_credentials([pair], ca if asks_for_certificate else None, asks_for_certificate)


async def test_a_key_goes_with_every_call(connect: Connect) -> None:
    async with scripted_gateway(FINE) as (gateway, address):
        asker = await connect(address, api_key="sk-1")
        await asker.generate("x")
        await asker.tokenize("x")
        await asker.list_models()
        await (await connect(address)).generate("x")
    assert [sent.get("authorization") for sent in gateway.metadata] == ["Bearer sk-1"] * 3 + [None]
    assert all(sent["user-agent"].startswith("allroads-client/") for sent in gateway.metadata)


@pytest.mark.parametrize("key", ["two words", "schlüssel", "line\n"])
async def test_a_key_that_cannot_be_sent_is_refused_and_not_repeated(connect: Connect, key: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        await connect("127.0.0.1:1", api_key=key)
    assert refusal.value.field == "api_key"
    assert key not in refusal.value.message


async def test_an_encrypted_connection(connect: Connect, certificates: Path) -> None:
    trusting = Tls(ca_certificates=certificates / "ca.pem", server_name="gateway.test")
    async with scripted_gateway(FINE, credentials=_server(certificates, asks_for_certificate=False)) as (_, address):
        assert (await (await connect(address, tls=trusting)).generate("x")).text == "0 1 "
        for stranger in (
            None,
            Tls(server_name="gateway.test"),
            Tls(ca_certificates=certificates / "ca.pem", server_name="other.test"),
        ):
            with pytest.raises(Unavailable):
                await (await connect(address, tls=stranger, retry=NO_RETRY)).generate("x")


async def test_a_client_certificate(connect: Connect, certificates: Path) -> None:
    ca, name = certificates / "ca.pem", "gateway.test"
    async with scripted_gateway(FINE, credentials=_server(certificates, asks_for_certificate=True)) as (_, address):
        known = Tls(ca, certificates / "client.pem", str(certificates / "client.key"), name)
        assert (await (await connect(address, tls=known)).generate("x")).text == "0 1 "
        with pytest.raises(Unavailable):
            await (await connect(address, tls=Tls(ca, server_name=name), retry=NO_RETRY)).generate("x")


@pytest.mark.parametrize(
    ("tls", "field"),
    [
        (Tls(ca_certificates="/no/such.pem"), "tls.ca_certificates"),
        (Tls(certificate="a.pem"), "tls.key"),
        (Tls(key="a.key"), "tls.certificate"),
    ],
)
async def test_wrong_files_are_named(connect: Connect, tls: Tls, field: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        await connect("127.0.0.1:1", tls=tls)
    assert refusal.value.field == field


def test_the_gateway_bears_the_clients_pings() -> None:
    """C18: never more often than the gateway allows, and a dead one is noticed all the same."""
    client = dict(channel_options(1, None))
    assert int(client["grpc.keepalive_time_ms"]) / 1000 >= 2 * LimitSettings().min_ping_interval_s
    assert int(client["grpc.keepalive_timeout_ms"]) <= int(client["grpc.keepalive_time_ms"])
    # Quiet streams are watched for as long as they last, idle connections are not.
    assert client["grpc.http2.max_pings_without_data"] == 0
    assert "grpc.keepalive_permit_without_calls" not in client


async def test_a_message_over_the_limit_harms_only_its_call(serve: Serve, connect: Connect) -> None:
    """C19: either end may be the one that refuses, and the connection stays."""
    served = await serve(Script([5]), max_message_bytes=100_000)
    asker = await connect(served, retry=Retry(first_pause_s=60))
    with pytest.raises(ResourceExhausted, match="100000"):
        await asker.generate("x" * 200_000)
    narrow = await connect(served, max_message_bytes=1000)
    with pytest.raises(ResourceExhausted, match="1000"):
        await narrow.generate("x" * 2000)
    for one in (asker, narrow):
        assert (await one.generate("x")).token_ids == (5,)


async def test_one_client_serves_many_threads() -> None:
    """The sync client is made for servers that work in threads."""
    async with scripted_gateway(FINE) as (gateway, address):
        with Client(address) as client:
            answers = await asyncio.gather(*(asyncio.to_thread(client.generate, "x") for _ in range(16)))
        assert {answer.text for answer in answers} == {"0 1 "}
        assert len(gateway.metadata) == 16


async def test_what_was_closed_can_be_closed_again(connect: Connect) -> None:
    async with scripted_gateway(Act(2)) as (_, address):
        asker = await connect(address)
        pieces, _ = await asker.pieces("x")
        assert pieces
        await asker.close()
        await asker.close()

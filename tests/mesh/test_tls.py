"""Mutual TLS between services: who has no certificate of the mesh's authority neither calls nor is called."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from allroads.cli.readiness import until_ready
from allroads.config import MeshTlsSettings, TlsSettings
from allroads.errors import StartupError
from allroads.mesh.certificates import check_certificate, is_loopback, pinned
from allroads.mesh.channels import channel_options, open_channel
from allroads.mesh.server import ServiceServer
from allroads.mesh.tls import outside_credentials, server_credentials
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.doubles.certificates import Authority, make_authority

SIZE = 1 << 20
SERVING = health_pb2.HealthCheckResponse.SERVING
LOOPBACK = "IP:127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> MeshTlsSettings:
    return authority.mesh("mesh", LOOPBACK)


@asynccontextmanager
async def serving(credentials: grpc.ServerCredentials | None, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = ServiceServer([], max_message_bytes=SIZE)
    await server.start(address, credentials)
    yield address if address.startswith("unix:") else f"127.0.0.1:{server.bound_port}"
    await server.stop(0)


async def check(channel: grpc.aio.Channel) -> "health_pb2.HealthCheckResponse.ServingStatus.ValueType":
    """The answer, or an error as soon as the connection has failed once."""
    async with channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)).status


async def assert_refused(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await check(channel)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_services_of_one_mesh_know_each_other(tls: MeshTlsSettings) -> None:
    async with serving(server_credentials("127.0.0.1:0", tls)) as address:
        assert await check(open_channel(address, SIZE, tls)) == SERVING
        await until_ready(address, "", tls)


async def test_who_is_not_of_the_mesh_is_not_served(authority: Authority, tls: MeshTlsSettings, tmp_path: Path) -> None:
    stranger = make_authority(tmp_path, "other").mesh("stranger", LOOPBACK)
    trusting = stranger.model_copy(update={"ca": authority.certificate})
    without = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    async with serving(server_credentials("127.0.0.1:0", tls)) as address:
        await assert_refused(open_channel(address, SIZE, trusting))
        await assert_refused(grpc.aio.secure_channel(address, without, options=channel_options(SIZE)))
        await assert_refused(open_channel(address, SIZE))
        assert await check(open_channel(address, SIZE, tls)) == SERVING


async def test_who_is_not_of_the_mesh_is_not_called(tls: MeshTlsSettings, tmp_path: Path) -> None:
    stranger = make_authority(tmp_path, "other").mesh("stranger", LOOPBACK)
    async with serving(server_credentials("127.0.0.1:0", stranger)) as address:
        await assert_refused(open_channel(address, SIZE, tls))


async def test_the_name_of_a_service_is_checked(authority: Authority) -> None:
    named = authority.mesh("named", "DNS:slm.mesh")
    async with serving(server_credentials("127.0.0.1:0", named)) as address:
        await assert_refused(open_channel(address, SIZE, named))
        await assert_refused(open_channel(address, SIZE, named.model_copy(update={"server_name": "llm.mesh"})))
        assert await check(open_channel(address, SIZE, named.model_copy(update={"server_name": "slm.mesh"}))) == SERVING


async def test_unix_sockets_need_none(tls: MeshTlsSettings, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    assert server_credentials(address, tls) is None
    async with serving(None, address):
        assert await check(open_channel(address, SIZE, tls)) == SERVING


@pytest.mark.parametrize("name", ["DNS:mesh.example.com", "DNS:*.example.com", "IP:10.1.2.3"])
async def test_a_gateway_is_asked_by_whoever_knows_its_certificate(authority: Authority, name: str) -> None:
    outside = authority.sign("outside", name)
    async with serving(outside_credentials(outside, "gateway.tls")) as address:
        async with asyncio.timeout(20):
            await until_ready(address, "", pinned(outside, "gateway.tls"))
        await assert_refused(open_channel(address, SIZE))


def test_the_names_of_a_certificate(authority: Authority) -> None:
    own = authority.sign("two", "DNS:a.example.com", "IP:10.0.0.1")
    assert check_certificate(own, "gateway.tls") == ("a.example.com", "10.0.0.1")
    assert check_certificate(own, "tls", ca=authority.certificate) == ("a.example.com", "10.0.0.1")


def test_files_that_do_not_belong_together(authority: Authority, tmp_path: Path) -> None:
    one, two = authority.sign("one", LOOPBACK), authority.sign("other", LOOPBACK)
    stranger = make_authority(tmp_path, "stranger")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    for files, ca in (
        (TlsSettings(certificate=one.certificate, key=two.key), None),
        (TlsSettings(certificate=garbage, key=one.key), None),
        (TlsSettings(certificate=one.certificate, key=garbage), None),
        (one, stranger.certificate),
        (one, garbage),
    ):
        with pytest.raises(StartupError, match="cannot be used") as error:
            check_certificate(files, "gateway.tls", ca=ca)
        assert error.value.field == "gateway.tls"
    with pytest.raises(StartupError, match=r"tls\.ca: cannot read"):
        check_certificate(one, "tls", ca=tmp_path / "none.pem")
    with pytest.raises(StartupError, match=r"gateway\.tls\.key: cannot read"):
        check_certificate(one.model_copy(update={"key": tmp_path / "none.key"}), "gateway.tls")


def test_an_open_address_is_warned_of(caplog: pytest.LogCaptureFixture, tls: MeshTlsSettings) -> None:
    for address in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/x"):
        assert server_credentials(address, None) is None
    assert server_credentials("0.0.0.0:1", tls) is not None
    assert caplog.records == []
    server_credentials("0.0.0.0:1", None)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "0.0.0.0:1 may be reached by others" in record.getMessage()


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("[::1]", True), ("localhost", True), ("", False), ("::", False),
     ("10.0.0.1", False), ("slm", False)],
)  # fmt: skip
def test_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local

"""TLS at the gateway's two doors, and what is said of a gateway that stands open."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from allroads.cli.chat_client import ChatClient
from allroads.cli.endpoint import describe_endpoint, rest_url
from allroads.cli.readiness import until_ready
from allroads.cli.services import mesh_services
from allroads.config import GatewaySettings, LimitSettings, MeshSettings
from allroads.errors import AllroadsError, StartupError
from allroads.gateway.grpc_api import SERVICE_NAME
from allroads.gateway.security.exposure import credentials_of
from allroads.gateway.security.key_changes import add_key
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.certificates import pinned
from allroads.mesh.wire import gateway_pb2, gateway_pb2_grpc

from tests.doubles.certificates import make_authority
from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve


async def test_both_doors_speak_tls_and_nothing_else(serve: Serve, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    authority = make_authority(tmp_path)
    tls = authority.sign("gateway", "DNS:localhost", "IP:127.0.0.1")
    key = add_key(tmp_path / "keys.yaml", "alice")
    served = await serve(
        Script(await tokenizer.encode_prompt("12")), home_fits=False, tls=tls, keys_path=tmp_path / "keys.yaml",
        limits=LimitSettings(head_timeout_s=20),
    )  # fmt: skip
    await until_ready(f"127.0.0.1:{served.running.grpc_port}", SERVICE_NAME, pinned(tls, "gateway.tls"))
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    async with grpc.aio.secure_channel(f"127.0.0.1:{served.running.grpc_port}", credentials) as channel:
        call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(
            gateway_pb2.GenerateTextRequest(prompt="x"), metadata=(("authorization", f"Bearer {key}"),)
        )
        assert "".join([piece.text_delta async for piece in call]) == "12"
    context = ssl.create_default_context(cafile=authority.certificate)
    url = f"https://127.0.0.1:{served.running.rest_port}"
    async with httpx.AsyncClient(base_url=url, verify=context, headers={"x-api-key": key}) as client:
        body = {"model": MODEL, "prompt": "x"}
        assert (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"] == "12"
        streamed = await client.post("/v1/completions", json={**body, "stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
    with pytest.raises(httpx.HTTPError):
        await served.http.get("/health")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await served.stub.ListModels(gateway_pb2.ListModelsRequest())
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_that_cannot_be_used_stops_the_start(serve: Serve, tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    tls = authority.sign("gateway", "DNS:localhost").model_copy(update={"key": tmp_path / "none.key"})
    with pytest.raises(StartupError, match=r"gateway\.tls\.key"):
        await serve(Script([]), tls=tls)


def test_who_starts_a_mesh_asks_with_the_right_credentials(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    outside, inside = authority.sign("outside", "DNS:chat.example.com"), authority.mesh("inside", "DNS:slm")
    settings = MeshSettings(gateway=GatewaySettings(tls=outside), tls=inside).with_addresses(tmp_path)
    services = {service.name: service for service in mesh_services(settings, tmp_path / "mesh.yaml")}
    gateway = services["gateway"].tls
    assert gateway is not None
    assert (gateway.ca, gateway.server_name) == (outside.certificate, "chat.example.com")
    assert {service.tls for name, service in services.items() if name != "gateway"} == {inside}


def test_the_first_request_is_told_as_it_must_be(tmp_path: Path) -> None:
    tls = make_authority(tmp_path).sign("gateway", "DNS:localhost")
    plain = MeshSettings()
    assert rest_url(plain).startswith("http://")
    assert "Authorization" not in describe_endpoint(plain, 1.0)
    closed = MeshSettings(gateway=GatewaySettings(tls=tls, keys_path=tmp_path / "keys.yaml"))
    assert rest_url(closed).startswith("https://")
    assert '-H "Authorization: Bearer $KEY"' in describe_endpoint(closed, 1.0)


@pytest.mark.parametrize(
    ("host", "has_keys", "has_tls", "words"),
    [
        ("127.0.0.1", False, False, []),
        ("0.0.0.0", False, False, ["gateway.keys_path", "gateway.tls"]),
        ("0.0.0.0", True, False, ["gateway.tls"]),
        ("::", False, True, ["gateway.keys_path"]),
        ("0.0.0.0", True, True, []),
    ],
)
def test_one_line_says_what_is_missing(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, host: str, has_keys: bool, has_tls: bool, words: list[str]
) -> None:
    tls = make_authority(tmp_path).sign("gateway", "DNS:localhost") if has_tls else None
    settings = GatewaySettings(host=host, keys_path=tmp_path / "keys.yaml" if has_keys else None, tls=tls)
    assert (credentials_of(settings) is not None) == has_tls
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * bool(words)
    for word in ("gateway.keys_path", "gateway.tls"):
        assert (word in caplog.text) == (word in words)


async def test_our_own_client_brings_a_key_and_trusts_what_it_is_told_to(
    serve: Serve, tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    authority = make_authority(tmp_path)
    keys = tmp_path / "keys.yaml"
    key = add_key(keys, "alice")
    served = await serve(
        Script(await tokenizer.encode_prompt("1")),
        home_fits=False,
        tls=authority.sign("gateway", "IP:127.0.0.1"),
        keys_path=keys,
    )
    url = f"https://127.0.0.1:{served.running.rest_port}/v1"

    def model(**options: Any) -> str:
        client = ChatClient(url, {}, **options)
        try:
            return client.model()
        finally:
            client.close()

    assert await asyncio.to_thread(model, api_key=key, ca=authority.certificate) == MODEL
    with pytest.raises(AllroadsError, match="key is needed"):
        await asyncio.to_thread(model, ca=authority.certificate)
    with pytest.raises(AllroadsError, match="not one that is trusted"):
        await asyncio.to_thread(model, api_key=key)
    with pytest.raises(AllroadsError, match="cannot read certificates"):
        ChatClient(url, {}, ca=tmp_path / "none.pem")

"""Neither keys nor what users write shows in logs, metrics or errors, whatever goes right or wrong."""

import json
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from allroads.cli.logs import QUIET_LIBRARIES
from allroads.errors import AllroadsError
from allroads.gateway.security.key_changes import add_key, revoke_key
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import common_pb2, gateway_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served
from tests.gateway.test_admission_door import connect

PROMPT = "the butler did it"
ANSWER = "8127364550192"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": PROMPT}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [USER]}),
    (CHAT, {"messages": [USER], "stream": True, "logprobs": True}),
    (TEXT, {"prompt": PROMPT}),
    (TEXT, {"prompt": [PROMPT, PROMPT]}),
    (CHAT, {"messages": PROMPT}),
    (CHAT, {"messages": [PROMPT]}),
    (CHAT, {"messages": [{"role": "user", "content": {"text": PROMPT}}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}, PROMPT]}]}),
    (CHAT, {"messages": [{**USER, "name": 3}]}),
    (CHAT, {"messages": [USER], "temperature": 9}),
    (CHAT, {"messages": [USER], "max_tokens": 10_000_000}),
    (CHAT, {"messages": [USER] * 300}),
    (TEXT, {"prompt": {"text": PROMPT}}),
    (TEXT, {"prompt": [PROMPT, 1]}),
    (TEXT, {"prompt": PROMPT * 1000}),
    (TEXT, {"prompt": PROMPT, "stop": [PROMPT, 1]}),
    (TEXT, {"prompt": PROMPT, "suffix": PROMPT}),
]  # fmt: skip


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str, str]:
    """One that is valid, one that was revoked, and one that never was."""
    path = tmp_path / "keys.yaml"
    valid, revoked = add_key(path, "alice"), add_key(path, "bob")
    revoke_key(path, "bob")
    return valid, revoked, "ar-neverWasAKey0123456789"


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """What a service writes, with traces, where the level is debug."""
    formatter = logging.Formatter("%(name)s %(message)s")
    return "\n".join(
        formatter.format(record)
        for record in caplog.records
        if record.levelno >= logging.WARNING or not record.name.startswith(QUIET_LIBRARIES)
    )


def assert_silent(text: str, keys: tuple[str, str, str], *more: str) -> None:
    for secret in (*keys, PROMPT, "butler", *more):
        assert secret not in text
    # Nor a part of one.
    assert not any(key[3:15] in text for key in keys)


async def test_nothing_secret_is_told(
    serve: Serve, tmp_path: Path, keys: tuple[str, str, str], caplog: pytest.LogCaptureFixture, tokenizer: TextTokenizer
) -> None:
    caplog.set_level(logging.DEBUG)
    served = await serve(Script(await tokenizer.encode_prompt(ANSWER), groups=(100,)), keys_path=tmp_path / "keys.yaml")
    told = [*await _rest(served, keys), *await _grpc(served, keys), *await _broken(served, keys)]
    metrics = await served.http.get("/metrics", headers={"x-api-key": keys[0]})
    assert "allroads" in metrics.text
    log = logged(caplog)
    for text in (*told, log, metrics.text):
        assert_silent(text, keys)
    assert ANSWER not in log + metrics.text
    assert "alice" not in log + metrics.text


async def _rest(served: Served, keys: tuple[str, str, str]) -> list[str]:
    """Every error body."""
    told: list[str] = []
    statuses: set[int] = set()
    for path, fields in BODIES:
        for key in keys:
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                response = await served.http.post(path, json={"model": MODEL, **fields}, headers=headers)
                statuses.add(response.status_code)
                if response.status_code != 200:
                    told.append(response.text)
    assert statuses == {200, 400, 401}
    return told


async def _grpc(served: Served, keys: tuple[str, str, str]) -> list[str]:
    request = gateway_pb2.GenerateTextRequest
    sampling = common_pb2.SamplingParams(temperature=9)
    message = gateway_pb2.ChatMessage(role="user", content=PROMPT)
    told = []
    for key in keys:
        for asked in (
            request(prompt=PROMPT),
            request(prompt=PROMPT, sampling=sampling),
            request(prompt=PROMPT * 1000),
            request(chat=gateway_pb2.ChatMessages(messages=[message, message])),
            request(chat=gateway_pb2.ChatMessages(messages=[gateway_pb2.ChatMessage(role="", content=PROMPT)])),
        ):
            try:
                async for _ in served.stub.Generate(asked, metadata=(("authorization", f"Bearer {key}"),)):
                    pass
            except grpc.aio.AioRpcError as error:
                told.append(f"{error.details()} {error.trailing_metadata()}")
    assert len(told) >= 12
    return told


async def _broken(served: Served, keys: tuple[str, str, str]) -> list[str]:
    """What is hardly HTTP, or hardly JSON."""
    told = []
    for key in keys:
        auth = f"authorization: Bearer {key}\r\n"
        body = json.dumps({"prompt": PROMPT})[:-1]
        for data in (
            f"POST {TEXT} HTTP/1.1\r\nhost: x\r\n{auth}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}",
            f"POST {TEXT} HTTP/1.1\r\nhost: x\r\n{auth}{PROMPT}\r\n\r\n",
            f"GET {TEXT} HTTP/1.1\r\nhost: x\r\n{auth}connection: close\r\n\r\n",
            f"GET /{PROMPT.replace(' ', '')[:3]} HTTP/1.1\r\n{auth}connection: close\r\n\r\n",
        ):
            connection = await connect(served)
            connection.writer.write(data.encode())
            status, answer = await connection.read()
            assert status >= 400
            told.append(answer.decode())
            await connection.close()
    return told


async def test_the_words_of_a_template_are_for_the_client_alone(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = await serve(Script([]))
    message = gateway_pb2.ChatMessage(role=PROMPT, content="x")
    request = gateway_pb2.GenerateTextRequest(chat=gateway_pb2.ChatMessages(messages=[message]))
    with pytest.raises(grpc.aio.AioRpcError, match="refuses these messages"):
        await served.stub.Generate(request).read()
    assert "refuses a request" in logged(caplog)
    assert "butler" not in logged(caplog)


async def test_a_fault_of_ours_tells_nothing_either(
    serve: Serve,
    tmp_path: Path,
    keys: tuple[str, str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    served = await serve(Script([]), keys_path=tmp_path / "keys.yaml")

    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(served.gateway, "plan_prompt", fail)
    headers = {"authorization": f"Bearer {keys[0]}"}
    response = await served.http.post(TEXT, json={"model": MODEL, "prompt": PROMPT}, headers=headers)
    assert response.status_code == 500
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await served.stub.Generate(
            gateway_pb2.GenerateTextRequest(prompt=PROMPT), metadata=(("x-api-key", keys[0]),)
        ).read()
    log = logged(caplog)
    assert "RuntimeError" in log
    for text in (response.text, error.value.details() or "", log):
        assert_silent(text, keys)


def test_our_errors_have_no_room_for_more() -> None:
    """What an error says is its message, its field and its time, and nothing of the request."""
    assert vars(AllroadsError("m", field="f")) == {"message": "m", "field": "f", "retry_after_s": None}

"""C16 and failures: whoever leaves, whatever dies, the home learns of it and the client is told."""

import asyncio
import json
import logging
import socket
from typing import Any

import httpx
import pytest
from allroads.errors import NotANumber
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.gateway.tiers import MAX_TIERS
from allroads.mesh.status import to_wire
from allroads.mesh.wire import model_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served, finish_reasons, gateway_over, joined

REPORT = {"report_tokens": True}
TEXT = "Aya has 37 apples. Then, Aya gets 58 more apples."


async def held_script(tokenizer: TextTokenizer, num_before_hold: int = 4) -> Script:
    return Script(await tokenizer.encode_prompt(TEXT), hold=asyncio.Event(), num_before_hold=num_before_hold)


@pytest.mark.parametrize("num_before_hold", [0, 4])
async def test_clients_that_leave_end_their_requests(
    serve: Serve, tokenizer: TextTokenizer, num_before_hold: int
) -> None:
    served = await serve(await held_script(tokenizer, num_before_hold), max_running=3)
    tasks = [asyncio.create_task(served.chat(stream=index % 2 == 0)) for index in range(8)]
    await served.home.until(lambda: len(served.home.opens) == 3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await served.gateway.wait_until_idle()
    await served.home.until(lambda: not served.home.running)
    assert sorted(served.home.aborted) == [opened.sequence_id for opened in served.home.opens]


async def test_a_client_that_leaves_in_mid_stream(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(await held_script(tokenizer))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if "content" in line:
                break
    await served.home.until(lambda: served.home.aborted == [1])
    await served.gateway.wait_until_idle()


async def test_the_time_limit_is_a_504(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(await held_script(tokenizer), request_timeout_s=0.2)
    response = await served.chat()
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "timeout"
    await served.home.until(lambda: served.home.aborted == [1])
    assert 0 < served.home.opens[0].timeout_ms <= 200
    chunks = await served.chunks()
    assert chunks[-2]["error"]["code"] == "timeout"
    assert finish_reasons(chunks[:-2]) == []


async def test_an_error_before_the_first_byte_is_a_status_and_after_it_an_event(
    serve: Serve, tokenizer: TextTokenizer
) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    error = to_wire(NotANumber("the model produced NaN"))

    def script(request: model_pb2.OpenRequest) -> Script:
        return Script(token_ids[: request.max_tokens - 1], error=error)

    served = await serve(script)
    early = await served.chat(stream=True, max_tokens=1)
    assert early.status_code == 500
    assert early.json()["error"]["code"] == "not_a_number"
    chunks = await served.chunks(max_tokens=6)
    assert joined(chunks[:-2]) == tokenizer.decode(token_ids[:5])
    assert chunks[-2]["error"]["message"] == "the model produced NaN"
    assert chunks[-1] == "[DONE]"
    assert finish_reasons(chunks[:-2]) == []
    assert (await served.chat(max_tokens=6)).status_code == 500


async def test_a_reader_that_takes_nothing_is_cut_off(serve: Serve, tokenizer: TextTokenizer) -> None:
    # Small groups: the script must not come to its end before the reader is cut off.
    script = Script(await tokenizer.encode_prompt("1"), is_endless=True, groups=(5,))
    served = await serve(script, reader_timeout_s=0.3, window=200_000)
    body = json.dumps(
        {"model": MODEL, "prompt": "x", "max_tokens": 190_000, "stream": True, "routing": REPORT}
    ).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.running.rest_port))
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        await served.home.until(lambda: served.home.aborted == [1])
        await served.gateway.wait_until_idle()


async def restart(served: Served) -> None:
    await served.home.die()
    await served.until_ready(False)
    await served.home.start(served.settings.slm.address)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_restarted_home_goes_on_where_the_lost_one_was(
    serve: Serve, tokenizer: TextTokenizer, stream: bool
) -> None:
    script = await held_script(tokenizer)
    script.tiers = (0, 1)
    served = await serve(script)
    answers = [asyncio.create_task(served.chat(stream=stream, routing=REPORT)) for _ in range(3)]
    await served.home.until(lambda: len(served.home.opens) == 3)
    await restart(served)
    assert script.hold is not None
    script.hold.set()
    for answer in answers:
        response = await answer
        text = response.text
        assert '"finish_reason":"length"' in text.replace(" ", "")
        if not stream:
            body = response.json()
            assert body["choices"][0]["message"]["content"] == TEXT
            assert body["routing"]["token_ids"] == list(script.token_ids)
            assert body["routing"]["tokens"] == {
                "slm": (len(script.token_ids) + 1) // 2,
                "llm": len(script.token_ids) // 2,
            }
    for opened in served.home.opens[3:]:
        num_committed = len(opened.committed_token_ids)
        assert opened.committed_token_ids == list(script.token_ids[:num_committed])
        assert opened.committed_tiers == [index % 2 for index in range(num_committed)]


async def test_a_stream_goes_on_over_a_restart(serve: Serve, tokenizer: TextTokenizer) -> None:
    script = await held_script(tokenizer)
    served = await serve(script)
    async with served.openai() as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
        )
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if text and text == tokenizer.decode(script.token_ids[:4]):
                await restart(served)
                assert script.hold is not None
                script.hold.set()
    assert text == TEXT
    assert served.home.opens[1].committed_token_ids == list(script.token_ids[:4])


async def test_a_home_lost_between_the_last_token_and_the_word_of_it(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    num_tokens = len(token_ids)
    script = Script([*token_ids, 5], groups=(num_tokens,), hold=asyncio.Event(), num_before_hold=num_tokens)
    served = await serve(script)
    async with served.openai() as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True, stop=["never"],
            extra_body={"stop_token_ids": [token_ids[-1]]},
        )  # fmt: skip
        text = ""
        reason = None
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason
            if text == tokenizer.decode(token_ids[:-1]) and reason is None:
                await restart(served)
    assert reason == "stop"
    assert len(served.home.opens) == 1


async def test_a_home_that_stays_away_is_a_503(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(await held_script(tokenizer), home_timeout_s=0.3)
    open_request = asyncio.create_task(served.chunks())
    await served.home.until(lambda: len(served.home.opens) == 1)
    await served.home.die()
    await served.until_ready(False)
    chunks = await open_request
    assert chunks[-2]["error"]["code"] == "unavailable"
    late = await served.chat()
    assert late.status_code == 503
    assert "retry-after" in late.headers
    assert (await served.http.get("/ready")).status_code == 503
    assert (await served.http.get("/health")).status_code == 200


async def test_before_the_home_was_ever_there(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(await held_script(tokenizer, 1000), home_starts=False)
    assert (await served.chat()).status_code == 503
    await served.home.start(served.settings.slm.address)
    await served.until_ready(True)
    assert (await served.chat()).status_code == 200


class Listener(logging.Handler):
    """Hears when something is logged."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.heard = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.words in record.getMessage():
            self.heard.set()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokenizer_hash": "another"}, "another tokenizer"),
        *(
            ({"tier_names": names}, f"a mesh has 2 to {MAX_TIERS} of different names")
            for names in ((), ("slm",), ("slm", "slm"), ("slm", ""), [f"t{tier}" for tier in range(MAX_TIERS + 1)])
        ),
    ],
)
async def test_a_home_that_does_not_fit_is_refused(
    serve: Serve, tokenizer: TextTokenizer, options: dict[str, Any], words: str
) -> None:
    listener = Listener(words)
    logging.getLogger("allroads.gateway.home").addHandler(listener)
    try:
        served = await serve(await held_script(tokenizer), home_fits=False, **options)
        # That the home was asked is not enough: its answer may still be on its way to the gateway.
        await listener.heard.wait()
        assert (await served.chat()).status_code == 503
        assert (await served.http.get("/ready")).status_code == 503
        assert served.home.opens == []
    finally:
        logging.getLogger("allroads.gateway.home").removeHandler(listener)


async def test_a_stop_lets_open_requests_finish_and_refuses_new_ones(serve: Serve, tokenizer: TextTokenizer) -> None:
    script = await held_script(tokenizer)
    served = await serve(script)
    answer = asyncio.create_task(served.chat())
    await served.home.until(lambda: len(served.home.opens) == 1)
    served.gateway.stop_admitting()
    assert (await served.chat()).status_code == 503
    assert (await served.http.get("/ready")).status_code == 503
    assert script.hold is not None
    script.hold.set()
    assert (await answer).json()["choices"][0]["message"]["content"] == TEXT


async def test_after_the_grace_streams_end_with_an_error(tokenizer: TextTokenizer) -> None:
    async with gateway_over(await held_script(tokenizer), grace_s=0.0) as served:
        client = httpx.AsyncClient(base_url=served.url, timeout=60)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
        answer = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await served.home.until(lambda: len(served.home.opens) == 1)
    response = await answer
    assert response.text.endswith("data: [DONE]\n\n") or response.status_code == 503
    assert "stopping" in response.text
    await client.aclose()

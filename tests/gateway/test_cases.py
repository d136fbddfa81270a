"""C22, C24, C53, C56: slow readers, degraded answers, labels of metrics, and metrics after a restart."""

import asyncio
import json
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import psutil
import pytest
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import common_pb2, model_pb2
from prometheus_client.parser import text_string_to_metric_families

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served, gateway_over

LONG = 50_000
HELD = 40_000
"""Tokens of a long answer that are written at once: more than any buffer on the way to a reader holds."""
NORMAL = 12


@contextmanager
def slow_reader(served: Served) -> Iterator[socket.socket]:
    """Asks for a long stream and reads nothing of it."""
    body = json.dumps(
        {"model": MODEL, "prompt": "x", "max_tokens": LONG, "stream": True, "routing": {"report_tokens": True}}
    ).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.running.rest_port))
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        yield client


async def test_slow_readers_are_cut_off_and_cost_their_neighbours_nothing(
    serve: Serve, tokenizer: TextTokenizer
) -> None:
    """C22: what is written for a reader is kept once, as tokens, as many as the window holds; text waits with it."""
    one = await tokenizer.encode_prompt("1")
    long = Script(one, is_endless=True, groups=(400,), hold=asyncio.Event(), num_before_hold=HELD)
    normal = Script(one, is_endless=True)
    served = await serve(
        lambda request: long if request.max_tokens == LONG else normal, reader_timeout_s=0.3, window=200_000
    )
    await served.complete(max_tokens=NORMAL, stream=True)
    before = psutil.Process().memory_info().rss
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(slow_reader(served))
        await served.home.until(lambda: len(served.home.opens) == 21)
        replies = await asyncio.gather(*(served.complete(max_tokens=NORMAL, stream=True) for _ in range(5)))
        await served.home.until(lambda: len(served.home.aborted) == 20)
    assert all(reply.text.count('"text":"1') >= 1 and "[DONE]" in reply.text for reply in replies)
    await served.gateway.wait_until_idle()
    await served.home.until(lambda: not served.home.running)
    assert {opened.sequence_id for opened in served.home.opens if opened.max_tokens == LONG} == {*served.home.aborted}
    # Of this process, in which the home and what other tests have left live, too. Text kept for each reader would be
    # a hundred times as much as the tokens.
    assert psutil.Process().memory_info().rss - before < 128 * 2**20


@pytest.mark.parametrize("stream", [False, True])
async def test_a_degraded_answer_is_marked_and_counted(serve: Serve, tokenizer: TextTokenizer, stream: bool) -> None:
    """C24: the rule for a lost tier shows in the reply and in the metrics."""
    served = await serve(Script(await tokenizer.encode_prompt("Aya"), usage=common_pb2.Usage(degraded=True)))
    reply = await served.chat(stream=stream)
    assert '"degraded":true' in reply.text.replace(" ", "")
    assert await served.metric("allroads_degraded_requests_total") == 1


def has_opened(served: Served, number: int) -> Callable[[], bool]:
    return lambda: len(served.home.opens) == number


async def scrape(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """Every series with its value, by name and labels."""
    families = text_string_to_metric_families((await http.get("/metrics")).text)
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


async def test_nothing_that_a_client_sends_becomes_a_label(serve: Serve, tokenizer: TextTokenizer) -> None:
    """C53: models, users, keys, ids, policies and paths of all kinds leave as many series as there were."""
    served = await serve(Script(await tokenizer.encode_prompt("Aya"), tiers=(0, 1), groups=(4,)))
    await served.chat()
    before = await scrape(served.http)

    async def ask(number: int) -> None:
        made_up = f"made-up-{uuid.uuid4().hex}"
        headers = {"authorization": f"Bearer {made_up}", "x-request-id": made_up, "user-agent": made_up}
        variants: list[dict[str, Any]] = [
            {"model": made_up},
            {"routing": {"policy": made_up}},
            {"user": made_up, "routing": {"key": made_up}, "metadata": {made_up: made_up}},
            {made_up: made_up, "stream": True},
        ]
        body = {"model": MODEL, "messages": [{"role": "user", "content": made_up}], **variants[number % 4]}
        await served.http.post(f"/v1/chat/completions?{made_up}=1", json=body, headers=headers)
        await served.http.get(f"/v1/models/{made_up}", headers=headers)

    for _ in range(4):
        await asyncio.gather(*(ask(number) for number in range(40)))
    after = await scrape(served.http)
    changing = {("allroads_launch_threshold", "tier=llm")}
    """Of a tier, and there once something was decided about it."""
    assert after.keys() - changing == before.keys() - changing
    assert "made-up" not in str(after)
    assert after["allroads_requests_total", "finish_reason=length"] == 81


async def test_a_gateway_that_starts_again_counts_anew(tokenizer: TextTokenizer) -> None:
    """C56: metrics live in the process that they are about, so nothing of one that ended is told, or lies on a disk."""
    hold = asyncio.Event()

    def script(request: model_pb2.OpenRequest) -> Script:
        return Script([5], hold=hold if request.max_tokens == 2 else None)

    files = {file.path for file in psutil.Process().open_files()}
    firsts = []
    for _ in range(3):
        hold.clear()
        async with gateway_over(script) as served:
            firsts.append(await scrape(served.http))
            assert (await served.chat(max_tokens=1)).status_code == 200
            held = asyncio.create_task(served.chat(max_tokens=2))
            await served.home.until(has_opened(served, 2))
            busy = await scrape(served.http)
            assert busy["allroads_requests_running",] == len(served.home.running) == 1
            assert busy["allroads_kv_tokens_free",] == 900
            hold.set()
            await held
            idle = await scrape(served.http)
            assert idle["allroads_requests_running",] == len(served.home.running) == 0
            assert idle["allroads_requests_total", "finish_reason=length"] == 2
            assert all(idle[series] >= value for series, value in busy.items() if series[0].endswith("_total"))
            assert not [file.path for file in psutil.Process().open_files() if file.path.endswith(".db")]
    assert {file.path for file in psutil.Process().open_files()} <= files
    for first in firsts:
        assert first.keys() == firsts[0].keys()
        assert not any(value for series, value in first.items() if series[0].endswith(("_total", "_count", "running")))

"""C46: 2,000 requests at once against 64 places: a bounded line, and refusals with a time to come back."""

import asyncio
import json
from itertools import islice

import grpc
import pytest
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import gateway_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served

NUM_REQUESTS = 2000
MAX_RUNNING, MAX_WAITING = 64, 256


class Reply:
    """An answer as it came over a socket."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        status, *headers = head.decode().split("\r\n")
        self.status = int(status.split()[1])
        self.headers = dict(line.split(": ", 1) for line in headers)


async def ask(served: Served, key: str) -> Reply:
    """A request on a connection of its own. The usual clients take longer for so many than the gateway does."""
    body = json.dumps({"model": MODEL, "prompt": "x"}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.running.rest_port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n%s" % (key.encode(), len(body), body)
    )
    data = await reader.read()
    writer.close()
    await writer.wait_closed()
    return Reply(data)


async def test_what_does_not_fit_is_refused_and_the_rest_is_served(serve: Serve, tokenizer: TextTokenizer) -> None:
    hold = asyncio.Event()
    script = Script(await tokenizer.encode_prompt("Aya has 37"), hold=hold)
    served = await serve(script, max_running=MAX_RUNNING, max_waiting=MAX_WAITING)
    num_places = MAX_RUNNING + MAX_WAITING
    tasks = [asyncio.create_task(ask(served, "one")) for _ in range(NUM_REQUESTS)]
    for answer in islice(asyncio.as_completed(tasks), NUM_REQUESTS - num_places):
        refused = await answer
        assert refused.status == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        error = json.loads(refused.body)["error"]
        assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "rate_limit_exceeded", None)
    scrape = (await served.http.get("/metrics")).text
    assert f"allroads_requests_waiting {MAX_WAITING}.0" in scrape
    assert f"allroads_requests_running {MAX_RUNNING}.0" in scrape
    assert f"allroads_admission_limit {MAX_RUNNING}.0" in scrape
    assert f'allroads_refusals_total{{reason="line_full"}} {NUM_REQUESTS - num_places}.0' in scrape
    call = served.stub.Generate(
        gateway_pb2.GenerateTextRequest(prompt="x"), metadata=(("authorization", "bearer one"),)
    )
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call.read()
    assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = refusal.value.trailing_metadata()
    assert trailing is not None
    assert "retry-after" in dict(trailing)
    # Somebody else has a turn all the same: one of the many makes way.
    other = asyncio.create_task(ask(served, "two"))
    while 'allroads_refusals_total{reason="displaced"} 1.0' not in (await served.http.get("/metrics")).text:
        pass
    hold.set()
    answers = await asyncio.gather(*tasks, other)
    assert answers[-1].status == 200
    assert [answer.status for answer in answers].count(200) == num_places
    assert len(served.home.opens) == num_places
    assert json.loads(answers[-1].body)["choices"][0]["text"] == "Aya has 37"
    await served.gateway.wait_until_idle()


async def test_several_prompts_need_room_for_all(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("1")), max_running=2, max_waiting=2)
    assert (await served.complete(prompt=["a"] * 4)).status_code == 200
    too_many = await served.complete(prompt=["a"] * 5)
    assert too_many.status_code == 400
    assert too_many.json()["error"]["param"] == "prompt"

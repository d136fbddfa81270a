"""C16: whoever leaves while queued never reaches a tier, and the place is free at once."""

import asyncio

import grpc
import httpx
import pytest
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import gateway_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served


async def occupied(serve: Serve, tokenizer: TextTokenizer, hold: asyncio.Event) -> tuple[Served, "asyncio.Task[None]"]:
    """A gateway with one place, and the request that has it."""
    script = Script(await tokenizer.encode_prompt("Aya has 37"), hold=hold)
    served = await serve(script, max_running=1, max_waiting=1)

    async def ask() -> None:
        assert (await served.chat()).status_code == 200

    running = asyncio.create_task(ask())
    await served.home.until(lambda: len(served.home.opens) == 1)
    return served, running


async def until_waiting(served: Served, count: int) -> None:
    """Watch the line; every look is a request and its answer, so the loop turns."""
    while await served.metric("allroads_requests_waiting") != count:
        pass


@pytest.mark.parametrize("face", ["whole", "streamed", "prompts", "grpc"])
async def test_a_client_that_leaves_the_line_never_reaches_a_tier(
    serve: Serve, tokenizer: TextTokenizer, face: str
) -> None:
    hold = asyncio.Event()
    served, running = await occupied(serve, tokenizer, hold)
    if face == "grpc":
        call = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x"))
        await until_waiting(served, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.read()
    else:
        # A connection of its own, which the end of the client closes.
        async with httpx.AsyncClient(base_url=served.url) as http:
            body = {"model": MODEL, "prompt": ["x"] if face == "prompts" else "x", "stream": face == "streamed"}
            leaving = asyncio.create_task(http.post("/v1/completions", json=body))
            await until_waiting(served, 1)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
    await until_waiting(served, 0)
    # Its place is free: another gets it.
    next_one = asyncio.create_task(served.chat())
    await until_waiting(served, 1)
    hold.set()
    await running
    assert (await next_one).status_code == 200
    await served.gateway.wait_until_idle()
    assert len(served.home.opens) == 2


async def test_a_deadline_that_passes_in_line(serve: Serve, tokenizer: TextTokenizer) -> None:
    hold = asyncio.Event()
    served, running = await occupied(serve, tokenizer, hold)
    call = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x"), timeout=0.2)
    assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await until_waiting(served, 0)
    hold.set()
    await running
    assert len(served.home.opens) == 1


async def test_a_wait_in_line_ends_by_the_queue_time(serve: Serve, tokenizer: TextTokenizer) -> None:
    hold = asyncio.Event()
    script = Script(await tokenizer.encode_prompt("1"), hold=hold)
    served = await serve(script, max_running=1, queue_timeout_s=0.05)
    running = asyncio.create_task(served.chat())
    await served.home.until(lambda: len(served.home.opens) == 1)
    late = await served.chat(stream=True)
    assert late.status_code == 429
    assert "retry-after" in late.headers
    hold.set()
    await running
    scrape = (await served.http.get("/metrics")).text
    assert 'allroads_refusals_total{reason="queue_timeout"} 1.0' in scrape
    assert "allroads_queue_wait_seconds_count 1.0" in scrape
    assert len(served.home.opens) == 1


async def test_a_wrong_request_gives_its_place_back(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("1")), max_running=1, max_waiting=1)
    for _ in range(3):
        assert (await served.chat(max_tokens=0)).status_code == 400
        call = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt=""))
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert (await served.complete(prompt=["a", "b"])).status_code == 200
    await served.gateway.wait_until_idle()


async def test_starts_that_are_paced_are_all_served(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("1")), admission={"starts_per_s": 1000})
    answers = await asyncio.gather(*(served.chat() for _ in range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20

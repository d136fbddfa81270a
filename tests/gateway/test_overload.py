"""C46: a bounded line, and refusals with a time to come back."""

import asyncio
from itertools import islice

import grpc
import pytest
from allroads.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from allroads.gateway.admission.limiter import Limiter
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import gateway_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve


async def test_what_does_not_fit_is_refused_and_the_rest_is_served(serve: Serve, tokenizer: TextTokenizer) -> None:
    hold = asyncio.Event()
    served = await serve(Script(await tokenizer.encode_prompt("Aya has 37"), hold=hold), max_running=4, max_waiting=16)
    tasks = [asyncio.create_task(served.chat(stream=index % 3 == 0)) for index in range(100)]
    for answer in islice(asyncio.as_completed(tasks), 80):
        response = await answer
        assert response.status_code == 429
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(response.headers["retry-after"]) <= 60
    scrape = (await served.http.get("/metrics")).text
    assert "allroads_requests_waiting 16.0" in scrape
    assert "allroads_requests_running 4.0" in scrape
    assert 'allroads_requests_total{finish_reason="resource_exhausted"} 80.0' in scrape
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x")).read()
    assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = refusal.value.trailing_metadata()
    assert trailing is not None
    assert "retry-after" in dict(trailing)
    hold.set()
    answers = await asyncio.gather(*tasks)
    assert sum(response.status_code == 200 for response in answers) == 20
    await served.gateway.wait_until_idle()


async def test_several_prompts_need_room_for_all(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script(await tokenizer.encode_prompt("1")), max_running=2, max_waiting=2)
    assert (await served.complete(prompt=["a"] * 4)).status_code == 200
    too_many = await served.complete(prompt=["a"] * 5)
    assert too_many.status_code == 400
    assert too_many.json()["error"]["param"] == "prompt"


def limiter(**options: float) -> Limiter:
    return Limiter(max_running=1, max_waiting=2, queue_timeout_s=options.pop("queue_timeout_s", 60.0), **options)  # type: ignore[arg-type]


async def test_the_line_is_served_in_order_and_who_leaves_frees_a_place() -> None:
    line = limiter()
    first, second, third = line.enter(), line.enter(), line.enter()
    with pytest.raises(ResourceExhausted):
        line.enter()
    second.release()
    fourth = line.enter()
    first.release()
    first.release()
    await third.wait(60)
    assert (line.num_running, line.num_waiting) == (1, 1)
    third.release()
    await fourth.wait(60)
    fourth.release()
    await line.wait_until_idle()
    assert (line.num_running, line.num_waiting) == (0, 0)


async def test_a_wait_ends_by_queue_time_or_deadline() -> None:
    line = limiter(queue_timeout_s=0.01)
    line.enter()
    waiting = line.enter()
    with pytest.raises(ResourceExhausted) as late:
        await waiting.wait(60)
    assert late.value.retry_after_s is not None
    with pytest.raises(DeadlineExceeded):
        await waiting.wait(0.001)
    line.refuse_waiting(Unavailable("stopping"))
    with pytest.raises(Unavailable):
        await waiting.wait(60)


async def test_a_grant_does_not_outlive_a_cancelled_wait() -> None:
    line = limiter()
    first, second = line.enter(), line.enter()
    waiter = asyncio.create_task(second.wait(60))
    await asyncio.sleep(0)
    first.release()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    second.release()
    assert line.num_running == 0


async def test_the_time_to_come_back_follows_the_rate() -> None:
    now_s = 0.0
    line = Limiter(max_running=1, max_waiting=100, queue_timeout_s=60.0, clock=lambda: now_s)
    for _ in range(10):
        ticket = line.enter()
        now_s += 2.0
        ticket.release()
    tickets = [line.enter() for _ in range(6)]
    assert line.retry_after_s() == pytest.approx(6 * 18 / 10)
    for ticket in tickets:
        ticket.release()

"""Many requests in one gRPC call: side by side, each with its own end."""

import asyncio
from collections.abc import Callable, Sequence

import grpc
import pytest
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import common_pb2, gateway_pb2, model_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve, Served

TEXT = "Then, Aya gets 世界 58 more apples."


def asking(*token_ids: int, max_tokens: int | None = None) -> gateway_pb2.GenerateTextRequest:
    return gateway_pb2.GenerateTextRequest(
        prompt_tokens=gateway_pb2.TokenIds(token_ids=token_ids), max_tokens=max_tokens
    )


def a_batch(*requests: gateway_pb2.GenerateTextRequest) -> gateway_pb2.GenerateBatchRequest:
    return gateway_pb2.GenerateBatchRequest(requests=requests)


def by_first_token(scripts: dict[int, Script]) -> Callable[[model_pb2.OpenRequest], Script]:
    return lambda opened: scripts[opened.prompt_token_ids[0]]


async def ask(served: Served, *requests: gateway_pb2.GenerateTextRequest) -> list[gateway_pb2.GenerateBatchResponse]:
    return [response async for response in served.stub.GenerateBatch(a_batch(*requests), timeout=30)]


def of(index: int, responses: Sequence[gateway_pb2.GenerateBatchResponse]) -> list[gateway_pb2.GenerateTextResponse]:
    return [response.response for response in responses if response.index == index and response.HasField("response")]


def errors(responses: Sequence[gateway_pb2.GenerateBatchResponse]) -> dict[int, common_pb2.Error]:
    return {response.index: response.error for response in responses if response.HasField("error")}


async def test_each_request_has_its_own_answer(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await tokenizer.encode_prompt(TEXT)
    served = await serve(Script(token_ids, tiers=(0, 1), groups=(3,)))
    requests = [asking(5, max_tokens=most) for most in (2, 30, 5)]
    responses = await ask(served, *requests)
    assert errors(responses) == {}
    for index, request in enumerate(requests):
        answer = of(index, responses)
        expected = token_ids[: request.max_tokens]
        assert [token_id for response in answer for token_id in response.token_ids] == expected
        assert "".join(response.text_delta for response in answer) == tokenizer.decode(expected)
        assert answer[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert sum(answer[-1].usage.num_committed_tokens) == len(expected)
    assert len(served.home.opens) == 3


async def test_what_is_wrong_with_one_does_not_end_the_others(serve: Serve) -> None:
    error = common_pb2.Error(code=common_pb2.ERROR_CODE_NOT_A_NUMBER, message="the model wrote NaN")
    served = await serve(by_first_token({5: Script([8, 9]), 6: Script([8], error=error)}))
    responses = await ask(
        served,
        asking(5),
        gateway_pb2.GenerateTextRequest(prompt="x", model="no-such"),
        asking(6),
        asking(5, max_tokens=0),
        gateway_pb2.GenerateTextRequest(),
    )
    found = errors(responses)
    assert {index: (error.code, error.field) for index, error in found.items()} == {
        1: (common_pb2.ERROR_CODE_NOT_FOUND, "model"),
        2: (common_pb2.ERROR_CODE_NOT_A_NUMBER, ""),
        3: (common_pb2.ERROR_CODE_INVALID_ARGUMENT, "max_tokens"),
        4: (common_pb2.ERROR_CODE_INVALID_ARGUMENT, "prompt"),
    }
    assert [token_id for response in of(0, responses) for token_id in response.token_ids] == [8, 9]
    assert len(served.home.opens) == 2
    # A batch of nothing but wrong requests costs no place.
    assert errors(await ask(served, gateway_pb2.GenerateTextRequest())).keys() == {0}
    await served.gateway.wait_until_idle()


async def test_one_that_fails_gives_its_place_to_one_that_waits(serve: Serve) -> None:
    """Two places, one of them held for as long as the test: the other serves the rest, over a failure."""
    gate = asyncio.Event()
    error = common_pb2.Error(code=common_pb2.ERROR_CODE_INTERNAL, message="broken")
    served = await serve(
        by_first_token({5: Script([8], hold=gate), 6: Script([8], error=error), 7: Script([9])}), max_running=2
    )
    call = served.stub.GenerateBatch(a_batch(asking(5), asking(6), asking(7)), timeout=30)
    seen: list[gateway_pb2.GenerateBatchResponse] = []
    while len(seen) < 3:
        response = await call.read()
        assert isinstance(response, gateway_pb2.GenerateBatchResponse)
        seen.append(response)
    assert errors(seen).keys() == {1}
    assert of(2, seen)[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
    gate.set()
    last = await call.read()
    assert isinstance(last, gateway_pb2.GenerateBatchResponse)
    assert last.index == 0


@pytest.mark.parametrize("count", [0, 4])
async def test_a_batch_is_bounded_by_the_places_that_there_are(serve: Serve, count: int) -> None:
    served = await serve(Script([8]), max_running=2, max_waiting=1)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ask(served, *[asking(5)] * count)
    assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "from 1 to 3" in (refusal.value.details() or "")
    assert len(await ask(served, *[asking(5)] * 3)) == 3


async def test_without_room_for_all_the_call_is_refused_and_nothing_runs(serve: Serve) -> None:
    gate = asyncio.Event()
    served = await serve(Script([8], hold=gate), max_running=2, max_waiting=1)
    other = served.stub.GenerateBatch(a_batch(asking(5), asking(5)), timeout=30)
    await served.home.until(lambda: len(served.home.opens) == 2)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ask(served, asking(6), asking(6))
    assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "retry-after" in dict(refusal.value.trailing_metadata() or ())
    gate.set()
    assert len([response async for response in other]) == 2
    assert len(served.home.opens) == 2
    await served.gateway.wait_until_idle()


async def test_the_end_of_the_call_ends_all_that_are_open(serve: Serve) -> None:
    """C16, by cancellation and by deadline."""
    served = await serve(Script([8] * 9, hold=asyncio.Event(), num_before_hold=2))
    call = served.stub.GenerateBatch(a_batch(*[asking(5)] * 3))
    await call.read()
    await served.home.until(lambda: len(served.home.opens) == 3)
    call.cancel()
    await served.home.until(lambda: sorted(served.home.aborted) == [1, 2, 3])
    late = served.stub.GenerateBatch(a_batch(*[asking(5)] * 2), timeout=0.3)
    assert await late.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await served.home.until(lambda: sorted(served.home.aborted) == [1, 2, 3, 4, 5])
    assert all(0 < opened.timeout_ms <= 300 for opened in served.home.opens[3:])
    await served.gateway.wait_until_idle()

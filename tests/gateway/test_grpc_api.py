"""The gRPC face: the same answers, errors as statuses, and calls that end with their client."""

import asyncio

import grpc
import pytest
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.routing import routing_to_wire
from allroads.mesh.wire import common_pb2, gateway_pb2

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, WINDOW, Serve, Served

TEXT = "Then, Aya gets 世界 58 more apples."
CHAT = gateway_pb2.ChatMessages(messages=[gateway_pb2.ChatMessage(role="user", content="x")])


async def generate(served: Served, request: gateway_pb2.GenerateTextRequest) -> list[gateway_pb2.GenerateTextResponse]:
    call = served.stub.Generate(request)
    responses = []
    while isinstance(response := await call.read(), gateway_pb2.GenerateTextResponse):
        responses.append(response)
    return responses


async def test_an_answer_equals_that_over_rest(serve: Serve, tokenizer: TextTokenizer) -> None:
    script = Script(await tokenizer.encode_prompt(TEXT), tiers=(0, 1), groups=(3,))
    served = await serve(script)
    for request in (
        gateway_pb2.GenerateTextRequest(chat=CHAT, model=MODEL),
        gateway_pb2.GenerateTextRequest(prompt="x"),
        gateway_pb2.GenerateTextRequest(prompt_tokens=gateway_pb2.TokenIds(token_ids=[5, 6])),
    ):
        responses = await generate(served, request)
        assert "".join(response.text_delta for response in responses) == TEXT
        assert [token_id for r in responses for token_id in r.token_ids] == script.token_ids
        assert len([tier for r in responses for tier in r.tiers]) == len(script.token_ids)
        assert responses[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert sum(responses[-1].usage.num_committed_tokens) == len(script.token_ids)
    await served.chat()
    prompts = [list(opened.prompt_token_ids) for opened in served.home.opens]
    assert prompts[0] == prompts[3]
    assert prompts[2] == [5, 6]
    models = (await served.stub.ListModels(gateway_pb2.ListModelsRequest())).models
    assert [(card.id, card.max_context_tokens) for card in models] == [(MODEL, WINDOW)]


@pytest.mark.parametrize(
    ("request_", "status", "field"),
    [
        (gateway_pb2.GenerateTextRequest(), "INVALID_ARGUMENT", "prompt"),
        (gateway_pb2.GenerateTextRequest(prompt=""), "INVALID_ARGUMENT", "prompt"),
        (gateway_pb2.GenerateTextRequest(chat=gateway_pb2.ChatMessages()), "INVALID_ARGUMENT", "messages"),
        (gateway_pb2.GenerateTextRequest(prompt="x", model="no-such"), "NOT_FOUND", "model"),
        (gateway_pb2.GenerateTextRequest(prompt="x", max_tokens=0), "INVALID_ARGUMENT", "max_tokens"),
        (
            gateway_pb2.GenerateTextRequest(prompt="x", sampling=common_pb2.SamplingParams(temperature=float("nan"))),
            "INVALID_ARGUMENT",
            "temperature",
        ),
        (
            gateway_pb2.GenerateTextRequest(prompt="x", routing=routing_to_wire("", {"threshold": float("nan")})),
            "INVALID_ARGUMENT",
            "routing.threshold",
        ),
        (
            gateway_pb2.GenerateTextRequest(prompt_tokens=gateway_pb2.TokenIds(token_ids=[5] * WINDOW)),
            "INVALID_ARGUMENT",
            "prompt",
        ),
    ],
)
async def test_errors_are_statuses(
    serve: Serve, request_: gateway_pb2.GenerateTextRequest, status: str, field: str
) -> None:
    served = await serve(Script([5]))
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await generate(served, request_)
    assert refusal.value.code().name == status
    trailing = refusal.value.trailing_metadata()
    assert trailing is not None
    assert dict(trailing)["field"] == field
    assert served.home.opens == []


async def test_a_cancelled_call_and_a_deadline_end_the_request(serve: Serve) -> None:
    served = await serve(Script([5] * 9, hold=asyncio.Event(), num_before_hold=2))
    call = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x"))
    await call.read()
    call.cancel()
    await served.home.until(lambda: served.home.aborted == [1])
    late = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x"), timeout=0.3)
    assert await late.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await served.home.until(lambda: served.home.aborted == [1, 2])
    assert 0 < served.home.opens[1].timeout_ms <= 300
    await served.gateway.wait_until_idle()

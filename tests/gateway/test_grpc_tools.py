"""What tools such as grpcurl need of the gRPC API: reflection and health; and tokens without a model."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
import pytest
from allroads.gateway.grpc_api import SERVICE_NAME
from allroads.gateway.text.tokenizer import TextTokenizer
from allroads.mesh.wire import gateway_pb2
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import MODEL, Serve, Served

TEXT = "Then, Aya gets 世界 58 more apples."
METHODS = {"Generate", "GenerateBatch", "Tokenize", "Detokenize", "ListModels"}
T = TypeVar("T")
CHAT = gateway_pb2.ChatMessages(messages=[gateway_pb2.ChatMessage(role="user", content="x")])


async def as_a_tool(served: Served, work: Callable[[grpc.Channel], T]) -> T:
    """Do what a tool does, outside the loop that serves it."""

    def run() -> T:
        with grpc.insecure_channel(f"127.0.0.1:{served.running.grpc_port}") as channel:
            return work(channel)

    return await asyncio.to_thread(run)


async def test_reflection_tells_enough_to_make_a_call_without_the_protos(serve: Serve) -> None:
    def call(channel: grpc.Channel) -> tuple[list[str], set[str], list[dict[str, Any]]]:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        service = pool.FindServiceByName(SERVICE_NAME)
        method = service.methods_by_name["Generate"]
        request = message_factory.GetMessageClass(method.input_type)()
        json_format.Parse('{"chat": {"messages": [{"role": "user", "content": "x"}]}, "maxTokens": 3}', request)
        generate: Callable[..., Iterator[Message]] = channel.unary_stream(
            f"/{SERVICE_NAME}/Generate",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        replies = [json_format.MessageToDict(reply) for reply in generate(request, timeout=30)]
        return list(database.get_services()), {method.name for method in service.methods}, replies

    served = await serve(Script([5, 6, 7, 8]))
    services, methods, replies = await as_a_tool(served, call)
    assert {SERVICE_NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} == set(services)
    assert methods == METHODS
    assert [token_id for reply in replies for token_id in reply.get("tokenIds", [])] == [5, 6, 7]
    assert replies[-1]["finishReason"] == "FINISH_REASON_LENGTH"


async def test_health_tells_of_the_process_and_of_the_service(serve: Serve) -> None:
    served = await serve(Script([5]), home_starts=False)
    health = health_pb2_grpc.HealthStub(served.channel)

    async def status(service: str) -> "health_pb2.HealthCheckResponse.ServingStatus.ValueType":
        return (await health.Check(health_pb2.HealthCheckRequest(service=service))).status

    assert await status("") == health_pb2.HealthCheckResponse.SERVING
    assert await status(SERVICE_NAME) == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await status("no.such")
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
    await served.home.start(served.settings.slm.address)
    await served.until_ready(True)
    assert await status(SERVICE_NAME) == health_pb2.HealthCheckResponse.SERVING


async def test_tokens_and_text_are_those_of_requests(serve: Serve, tokenizer: TextTokenizer) -> None:
    served = await serve(Script([5]))
    tokenize, detokenize = served.stub.Tokenize, served.stub.Detokenize
    response = await tokenize(gateway_pb2.TokenizeRequest(prompt=TEXT, model=MODEL))
    assert list(response.token_ids) == await tokenizer.encode_prompt(TEXT)
    assert response.max_context_tokens == 512
    assert (await detokenize(gateway_pb2.DetokenizeRequest(token_ids=response.token_ids))).text == TEXT
    await served.chat()
    chat = await tokenize(gateway_pb2.TokenizeRequest(chat=CHAT))
    assert list(chat.token_ids) == list(served.home.opens[0].prompt_token_ids)
    # Longer ones are done beside the event loop, with the same result.
    many = list(response.token_ids) * 500
    assert (await detokenize(gateway_pb2.DetokenizeRequest(token_ids=many))).text == tokenizer.decode(many)
    assert len((await tokenize(gateway_pb2.TokenizeRequest(prompt=TEXT * 500))).token_ids) > len(many) // 2


@pytest.mark.parametrize(
    ("request_", "status", "field"),
    [
        (gateway_pb2.TokenizeRequest(), "INVALID_ARGUMENT", "prompt"),
        (gateway_pb2.TokenizeRequest(chat=gateway_pb2.ChatMessages()), "INVALID_ARGUMENT", "messages"),
        (gateway_pb2.TokenizeRequest(prompt="x", model="no-such"), "NOT_FOUND", "model"),
        (gateway_pb2.DetokenizeRequest(token_ids=[2**32 - 1]), "INVALID_ARGUMENT", "token_ids"),
        (gateway_pb2.DetokenizeRequest(token_ids=[5], model="no-such"), "NOT_FOUND", "model"),
    ],
)
async def test_wrong_ones_are_refused_by_name(serve: Serve, request_: Any, status: str, field: str) -> None:
    served = await serve(Script([5]))
    is_text = isinstance(request_, gateway_pb2.TokenizeRequest)
    call = served.stub.Tokenize(request_) if is_text else served.stub.Detokenize(request_)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call
    assert refusal.value.code().name == status
    trailing = dict(refusal.value.trailing_metadata() or ())
    assert trailing["field"] == field
    assert trailing["code"] == status.lower()


async def test_the_context_windows_own_error_has_a_name_beside_its_status(serve: Serve) -> None:
    served = await serve(Script([5]))
    tokens = gateway_pb2.TokenIds(token_ids=[5] * 512)
    call = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt_tokens=tokens))
    assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert dict(await call.trailing_metadata())["code"] == "context_length_exceeded"


async def test_the_model_is_told_with_its_tiers_and_policies(serve: Serve) -> None:
    served = await serve(Script([5]))
    (card,) = (await served.stub.ListModels(gateway_pb2.ListModelsRequest())).models
    assert list(card.mesh.tier_names) == ["slm", "llm"]
    assert card.mesh.default_policy == "r2r"
    assert [policy.name for policy in card.mesh.policies][:2] == ["r2r", "random"]


async def test_one_limit_for_messages_at_the_gateways_face(serve: Serve) -> None:
    """C19: over it the call is refused by name of the limit and the connection stays; under it the window decides."""
    served = await serve(Script([5]), max_message_bytes=8_000_000)
    for size, status, words in (
        (6_000_000, grpc.StatusCode.INVALID_ARGUMENT, "context window"),
        (8_000_001, grpc.StatusCode.RESOURCE_EXHAUSTED, "8000000"),
    ):
        tokens = gateway_pb2.TokenIds(token_ids=[5] * size)
        call = served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt_tokens=tokens))
        assert await call.code() == status
        assert words in await call.details()
    replies = [reply async for reply in served.stub.Generate(gateway_pb2.GenerateTextRequest(prompt="x"))]
    assert replies[-1].finish_reason

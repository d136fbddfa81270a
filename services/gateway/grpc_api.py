"""The same API over gRPC: an adapter from messages to the gateway and back."""

import asyncio
import time
from collections.abc import Sequence

import grpc

from ..errors import AllroadsError, Cancelled, Code, InvalidArgument
from ..mesh.wire import gateway_pb2, gateway_pb2_grpc
from .batch import Batch
from .gateway import Gateway
from .generation import Generation
from .grpc_ends import Context, failing_by_status
from .grpc_messages import failure_of, messages_of, params_of, response_of
from .grpc_traced import traced_call
from .request import Plan
from .tokenizing import text_of_tokens, tokens_of_chat

SERVICE_NAME = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name

GenerateContext = grpc.aio.ServicerContext[gateway_pb2.GenerateTextRequest, gateway_pb2.GenerateTextResponse]
BatchContext = grpc.aio.ServicerContext[gateway_pb2.GenerateBatchRequest, gateway_pb2.GenerateBatchResponse]
TokenizeContext = grpc.aio.ServicerContext[gateway_pb2.TokenizeRequest, gateway_pb2.TokenizeResponse]
DetokenizeContext = grpc.aio.ServicerContext[gateway_pb2.DetokenizeRequest, gateway_pb2.DetokenizeResponse]
ListContext = grpc.aio.ServicerContext[gateway_pb2.ListModelsRequest, gateway_pb2.ListModelsResponse]

_WRONG = (Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.CONTEXT_LENGTH_EXCEEDED)
"""What is said of a request alone, and not of the others in its batch."""


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """Serves `GatewayService`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._started_unix_s = int(time.time())

    async def Generate(  # type: ignore[override]  # noqa: N802 (the name is the wire's)
        self, request: gateway_pb2.GenerateTextRequest, context: GenerateContext
    ) -> None:
        """Answer one request; the end of the call, however it comes, ends the request."""
        async with failing_by_status(context), traced_call(self._gateway.tracer, context, "Generate"):
            with self._gateway.admit(self._client(context), 1, context.time_remaining()) as places:
                plan = await self._plan(request, context.time_remaining())
                (generation,) = self._gateway.prepare([plan], places)
            try:
                await generation.start()
                async for piece in generation:
                    await self._write(context, response_of(piece, generation))
            finally:
                generation.close()

    async def GenerateBatch(  # type: ignore[override]  # noqa: N802 (the name is the wire's)
        self, request: gateway_pb2.GenerateBatchRequest, context: BatchContext
    ) -> None:
        """Answer many requests side by side; the end of the call ends those that are open.

        There is room for all that are right, or the call is refused. Later faults end the request they belong to.
        """
        async with failing_by_status(context), traced_call(self._gateway.tracer, context, "GenerateBatch"):
            most = self._gateway.door.limiter.most_places
            if not 0 < len(request.requests) <= most:
                raise InvalidArgument(
                    f"a batch must hold from 1 to {most} requests, not {len(request.requests)}", field="requests"
                )
            client = self._client(context)
            with self._gateway.admit(client, 1, context.time_remaining()) as places:
                plans, faults = await self._plans(request.requests, context.time_remaining())
                generations: dict[int, Generation] = {}
                if plans:
                    self._gateway.widen(places, client, len(plans))
                    prepared = self._gateway.prepare(list(plans.values()), places)
                    generations = dict(zip(plans, prepared, strict=True))
            batch = Batch(generations)
            try:
                for index, fault in faults.items():
                    await self._write(context, failure_of(index, fault))
                async for index, outcome in batch:
                    if isinstance(outcome, AllroadsError):
                        await self._write(context, failure_of(index, outcome))
                    else:
                        response = response_of(outcome, generations[index])
                        await self._write(context, gateway_pb2.GenerateBatchResponse(index=index, response=response))
            finally:
                await batch.close()

    async def Tokenize(  # noqa: N802 (the name is the wire's)
        self, request: gateway_pb2.TokenizeRequest, context: TokenizeContext
    ) -> gateway_pb2.TokenizeResponse:
        """Tokens of a prompt or a conversation."""
        async with failing_by_status(context):
            self._check_model(request.model)
            tokenizer, mesh, limit = self._gateway.tokenizer, self._gateway.mesh, self._gateway.count_limit
            match request.WhichOneof("input"):
                case "chat":
                    token_ids = await tokens_of_chat(tokenizer, messages_of(request.chat), limit)
                case "prompt":
                    token_ids = await tokenizer.encode_prompt(limit.fit(request.prompt, "prompt"))
                case _:
                    raise InvalidArgument("give chat or prompt", field="prompt")
            max_context_tokens = 0 if mesh is None else mesh.max_context_tokens
            return gateway_pb2.TokenizeResponse(token_ids=token_ids, max_context_tokens=max_context_tokens)

    async def Detokenize(  # noqa: N802 (the name is the wire's)
        self, request: gateway_pb2.DetokenizeRequest, context: DetokenizeContext
    ) -> gateway_pb2.DetokenizeResponse:
        """Text of tokens."""
        async with failing_by_status(context):
            self._check_model(request.model)
            return gateway_pb2.DetokenizeResponse(text=await text_of_tokens(self._gateway.tokenizer, request.token_ids))

    async def ListModels(  # noqa: N802 (the name is the wire's)
        self, request: gateway_pb2.ListModelsRequest, context: ListContext
    ) -> gateway_pb2.ListModelsResponse:
        """The one model that is served."""
        mesh = self._gateway.mesh
        card = gateway_pb2.ModelCard(
            id=self._gateway.settings.model_name,
            created_unix_s=self._started_unix_s,
            max_context_tokens=0 if mesh is None else mesh.max_context_tokens,
            mesh=mesh,
        )
        return gateway_pb2.ListModelsResponse(models=[card])

    def _client(self, context: Context) -> str:
        """The name of whom a call is from."""
        sent = {str(name): str(value) for name, value in context.invocation_metadata() or ()}
        return self._gateway.door.keys.name(sent.get("authorization"), sent.get("x-api-key"))

    def _check_model(self, name: str) -> None:
        if name:
            self._gateway.check_model(name)

    async def _plans(
        self, requests: Sequence[gateway_pb2.GenerateTextRequest], timeout_s: float | None
    ) -> tuple[dict[int, Plan], dict[int, AllroadsError]]:
        """Plans of the requests that are right, and what is wrong with the others, by their places."""
        plans: dict[int, Plan] = {}
        faults: dict[int, AllroadsError] = {}
        for index, request in enumerate(requests):
            try:
                plans[index] = await self._plan(request, timeout_s)
            except AllroadsError as error:
                if error.code not in _WRONG:
                    raise
                faults[index] = error
        return plans, faults

    async def _plan(self, request: gateway_pb2.GenerateTextRequest, timeout_s: float | None) -> Plan:
        self._check_model(request.model)
        params = params_of(request, timeout_s)
        match request.WhichOneof("input"):
            case "chat":
                messages = messages_of(request.chat)
                if not messages:
                    raise InvalidArgument("messages must hold at least one message", field="messages")
                return await self._gateway.plan_chat(messages, params)
            case "prompt":
                return await self._gateway.plan_prompt(request.prompt, params)
            case "prompt_tokens":
                return await self._gateway.plan_prompt(list(request.prompt_tokens.token_ids), params)
            case _:
                raise InvalidArgument("give chat, prompt or prompt_tokens", field="prompt")

    async def _write(self, context: Context, message: object) -> None:
        limit_s = self._gateway.settings.gateway.reader_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await context.write(message)
        except TimeoutError:
            raise Cancelled(f"the client took nothing for {limit_s:g} s") from None

"""The same API over gRPC: an adapter from messages to the gateway and back."""

import asyncio
import logging
import math
import time

import grpc

from ..errors import AllroadsError, Cancelled, Internal, InvalidArgument
from ..mesh.status import grpc_status
from ..mesh.wire import common_pb2, gateway_pb2, gateway_pb2_grpc
from .gateway import Gateway
from .generation import Generation, Piece
from .parameters import read_parameters
from .request import GenerationParams, Plan

logger = logging.getLogger(__name__)

SERVICE_NAME = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name
_REASONS = {"stop": common_pb2.FINISH_REASON_STOP, "length": common_pb2.FINISH_REASON_LENGTH}

GenerateContext = grpc.aio.ServicerContext[gateway_pb2.GenerateTextRequest, gateway_pb2.GenerateTextResponse]
ListContext = grpc.aio.ServicerContext[gateway_pb2.ListModelsRequest, gateway_pb2.ListModelsResponse]


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """Serves `GatewayService`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._started_unix_s = int(time.time())

    async def Generate(  # type: ignore[override]  # noqa: N802 (the name is the wire's)
        self, request: gateway_pb2.GenerateTextRequest, context: GenerateContext
    ) -> None:
        """Answer one request; the end of the call, however it comes, ends the request."""
        try:
            plan = await self._plan(request, context.time_remaining())
            (generation,) = self._gateway.prepare([plan])
            try:
                await self._write(generation, context)
            finally:
                generation.close()
        except AllroadsError as error:
            await _abort(context, error)
        except grpc.aio.AbortError:
            raise
        except Exception:  # the client must learn that the fault is ours, and nothing of what it was
            logger.exception("a call failed")
            await _abort(context, Internal("internal error; the gateway's log says more"))

    async def ListModels(  # noqa: N802 (the name is the wire's)
        self, request: gateway_pb2.ListModelsRequest, context: ListContext
    ) -> gateway_pb2.ListModelsResponse:
        """The one model that is served."""
        mesh = self._gateway.mesh
        card = gateway_pb2.ModelCard(
            id=self._gateway.settings.model_name,
            created_unix_s=self._started_unix_s,
            max_context_tokens=0 if mesh is None else mesh.max_context_tokens,
        )
        return gateway_pb2.ListModelsResponse(models=[card])

    async def _plan(self, request: gateway_pb2.GenerateTextRequest, timeout_s: float | None) -> Plan:
        if request.model:
            self._gateway.check_model(request.model)
        params = _params(request, timeout_s)
        match request.WhichOneof("input"):
            case "chat":
                messages = [{"role": message.role, "content": message.content} for message in request.chat.messages]
                if not messages:
                    raise InvalidArgument("messages must hold at least one message", field="messages")
                return await self._gateway.plan_chat(messages, params)
            case "prompt":
                return await self._gateway.plan_prompt(request.prompt, params)
            case "prompt_tokens":
                return await self._gateway.plan_prompt(list(request.prompt_tokens.token_ids), params)
            case _:
                raise InvalidArgument("give chat, prompt or prompt_tokens", field="prompt")

    async def _write(self, generation: Generation, context: GenerateContext) -> None:
        await generation.start()
        limit_s = self._gateway.settings.gateway.reader_timeout_s
        async for piece in generation:
            try:
                async with asyncio.timeout(limit_s):
                    await context.write(_response(piece, generation))
            except TimeoutError:
                raise Cancelled(f"the client took nothing for {limit_s:g} s") from None


def _params(request: gateway_pb2.GenerateTextRequest, timeout_s: float | None) -> GenerationParams:
    sampling, routing = request.sampling, request.routing
    return GenerationParams(
        max_tokens=request.max_tokens if request.HasField("max_tokens") else None,
        temperature=sampling.temperature if sampling.HasField("temperature") else None,
        top_p=sampling.top_p if sampling.HasField("top_p") else None,
        top_k=sampling.top_k if sampling.HasField("top_k") else None,
        min_p=sampling.min_p if sampling.HasField("min_p") else None,
        seed=sampling.seed if sampling.HasField("seed") else None,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty if sampling.HasField("repetition_penalty") else None,
        logit_bias=dict(sampling.logit_bias),
        min_tokens=sampling.min_tokens,
        num_logprobs=sampling.num_logprobs if sampling.HasField("num_logprobs") else None,
        stop=tuple(request.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        policy=routing.policy,
        parameters=read_parameters({name: list(numbers.values) for name, numbers in routing.parameters.items()}),
        mode=routing.mode,
        key=routing.key,
        timeout_s=timeout_s,
    )


def _response(piece: Piece, generation: Generation) -> gateway_pb2.GenerateTextResponse:
    response = gateway_pb2.GenerateTextResponse(
        text_delta=piece.text, token_ids=piece.token_ids, tiers=piece.tiers, logprobs=piece.logprobs
    )
    if piece.finish_reason is not None:
        response.finish_reason = _REASONS[piece.finish_reason]
        if generation.usage is not None:
            response.usage.CopyFrom(generation.usage)
        # The gateway's own count, which holds over a restart of the home, too.
        response.usage.num_prompt_tokens = generation.plan.num_prompt_tokens
        response.usage.num_committed_tokens[:] = generation.tier_counts
    return response


async def _abort(context: GenerateContext, error: AllroadsError) -> None:
    """End the call with an error; what a status cannot carry goes into the trailing metadata."""
    trailing = []
    if error.field:
        trailing.append(("field", error.field))
    if error.retry_after_s is not None:
        trailing.append(("retry-after", str(math.ceil(error.retry_after_s))))
    # The library takes a tuple and nothing else.
    await context.abort(grpc_status(error), error.message, tuple(trailing))

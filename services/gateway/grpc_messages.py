"""Messages of the gRPC API to what the gateway takes, and what it gives back to messages."""

from ..errors import AllroadsError
from ..mesh.status import to_wire
from ..mesh.wire import common_pb2, gateway_pb2
from .generation import Generation, Piece
from .grammar import Grammar
from .parameters import read_parameters
from .request import GenerationParams
from .text.template import Message

_REASONS = {"stop": common_pb2.FINISH_REASON_STOP, "length": common_pb2.FINISH_REASON_LENGTH}


def messages_of(chat: gateway_pb2.ChatMessages) -> list[Message]:
    """A conversation as chat templates take it."""
    return [{"role": message.role, "content": message.content} for message in chat.messages]


def params_of(request: gateway_pb2.GenerateTextRequest, timeout_s: float | None) -> GenerationParams:
    """How to continue the prompt of a request, unchecked but for the form of the policy's parameters.

    Raises:
        InvalidArgument: that form is wrong.
    """
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
        grammar=_grammar(sampling.grammar) if sampling.HasField("grammar") else None,
        policy=routing.policy,
        parameters=read_parameters({name: list(numbers.values) for name, numbers in routing.parameters.items()}),
        mode=routing.mode,
        key=routing.key,
        timeout_s=timeout_s,
    )


def _grammar(wire: common_pb2.Grammar) -> Grammar:
    return Grammar(wire.kind, wire.text, "sampling.grammar")


def response_of(piece: Piece, generation: Generation) -> gateway_pb2.GenerateTextResponse:
    """A piece of a generation; the last one brings the account."""
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


def failure_of(index: int, error: AllroadsError) -> gateway_pb2.GenerateBatchResponse:
    """The end of one request of a batch, by an error."""
    return gateway_pb2.GenerateBatchResponse(index=index, error=to_wire(error))

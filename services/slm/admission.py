"""Turn a client's open message into a request, or refuse it before any work is done."""

import math

from ..engine.sequence import Sequence
from ..errors import ContextLengthExceeded, InvalidArgument
from ..mesh.wire import common_pb2 as pb
from ..mesh.wire import model_pb2
from ..model.sampling_wire import sampling_from_wire
from ..policies.policy import Policy, RequestView
from .request import Request


def open_request(
    stream_id: int,
    number: int,
    wire: model_pb2.OpenRequest,
    *,
    policy: Policy,
    default_threshold: float | None,
    max_context: int,
    num_tokens: int,
    eos_token_ids: frozenset[int],
) -> Request:
    """A new request, not yet in the engine.

    Args:
        stream_id: the client's stream.
        number: the request's own number in this home.
        wire: what the client sent.
        policy: the policy that it asked for.
        default_threshold: the router checkpoint's threshold, for policies that it scores.
        max_context: the smallest window of all tiers.
        num_tokens: size of the vocabulary.
        eos_token_ids: union over all tiers.

    Raises:
        InvalidArgument: a field is wrong; names it.
        ContextLengthExceeded: prompt and answer do not fit the window.
    """
    tokens = [*wire.prompt_token_ids, *wire.committed_token_ids]
    _check_tokens(wire, tokens, max_context, num_tokens)
    stop_token_ids = frozenset(wire.sampling.stop_token_ids)
    if not wire.sampling.ignore_eos:
        stop_token_ids |= eos_token_ids
    sampling = sampling_from_wire(wire.sampling, stop_token_ids)
    sampling.require_known_ids(num_tokens)
    num_committed = len(wire.committed_token_ids)
    request = Request(
        stream_id=stream_id,
        sequence_id=wire.sequence_id,
        number=number,
        request_id=wire.request_id,
        traceparent=wire.traceparent,
        sequence=Sequence(
            tokens,
            max_length=len(wire.prompt_token_ids) + wire.max_tokens,
            sampling=sampling,
            num_prompt_tokens=len(wire.prompt_token_ids),
        ),
        policy=policy,
        view=RequestView(
            seed=sampling.seed,
            threshold=_threshold(wire.routing, policy, default_threshold),
            share=_share(wire.routing, policy),
            max_tokens=wire.max_tokens,
            position=num_committed,
        ),
        length=len(tokens),
        stop_token_ids=stop_token_ids,
    )
    request.usage.num_prompt_tokens = len(wire.prompt_token_ids)
    for tier in wire.committed_tiers:
        request.usage.num_committed_tokens[tier] += 1
        request.num_own = 0 if tier else request.num_own + 1
    return request


def _check_tokens(wire: model_pb2.OpenRequest, tokens: list[int], max_context: int, num_tokens: int) -> None:
    if not wire.prompt_token_ids:
        raise InvalidArgument("the prompt is empty", field="prompt")
    if max(tokens) >= num_tokens:
        raise InvalidArgument(f"token id {max(tokens)} is not in the vocabulary of {num_tokens}", field="prompt")
    if wire.max_tokens < 1:
        raise InvalidArgument("max_tokens must be at least 1", field="max_tokens")
    if len(wire.committed_token_ids) >= wire.max_tokens:
        raise InvalidArgument("the answer has all its tokens already", field="committed_token_ids")
    if len(wire.committed_tiers) != len(wire.committed_token_ids) or any(tier > 1 for tier in wire.committed_tiers):
        raise InvalidArgument("each committed token needs the tier that wrote it", field="committed_tiers")
    if len(wire.prompt_token_ids) + wire.max_tokens > max_context:
        raise ContextLengthExceeded(
            f"{len(wire.prompt_token_ids)} prompt tokens and {wire.max_tokens} to write are more than the context "
            f"window of {max_context}",
            field="max_tokens",
        )


def _threshold(routing: pb.Routing, policy: Policy, default: float | None) -> float:
    if policy.threshold is None:
        return 0.0
    if not routing.HasField("threshold"):
        return default if policy.scorer is not None and default is not None else policy.threshold.default
    low, high = policy.threshold.minimum, policy.threshold.maximum
    if not low <= routing.threshold <= high:
        raise InvalidArgument(
            f"the threshold of {policy.name} must be from {low:g} to {high:g}, not {routing.threshold:g}",
            field="routing.threshold",
        )
    return routing.threshold


def _share(routing: pb.Routing, policy: Policy) -> float:
    if not policy.needs_share:
        return 0.0
    if not routing.HasField("share") or not math.isfinite(routing.share) or not 0 <= routing.share <= 1:
        raise InvalidArgument(f"{policy.name} needs a share from 0 to 1", field="routing.share")
    return routing.share

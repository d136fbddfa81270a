"""Refuses wrong requests before any model works, with the field at fault in the words of the REST API."""

import hashlib
from collections.abc import Mapping, Sequence

from ..config import MODES
from ..engine.sampling_params import MAX_BIASES, MAX_LOGPROBS
from ..errors import AllroadsError, ContextLengthExceeded, InvalidArgument
from ..mesh.routing import resolve_parameters, routing_to_wire
from ..mesh.wire import common_pb2, model_pb2
from .request import GenerationParams, Plan

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1000
MAX_STOP_TOKEN_IDS = 128
_MAX_TOP_K = 2**31 - 1
_MAX_TEMPERATURE = 2.0
_MAX_MIN_TOKENS = 2**31 - 1


def check_params(params: GenerationParams, mesh: model_pb2.MeshDescription, num_token_ids: int) -> None:
    """Everything but the prompt, so that a wrong request costs no tokenizing.

    Raises:
        InvalidArgument: names the field.
    """
    if params.max_tokens is not None and params.max_tokens < (0 if params.echo else 1):
        raise InvalidArgument(
            f"max_tokens must be at least 1, or 0 with echo, not {params.max_tokens}", field="max_tokens"
        )
    _check_range("temperature", params.temperature, 0.0, _MAX_TEMPERATURE)
    _check_range("top_p", params.top_p, 0.0, 1.0)
    if params.top_p == 0:
        raise InvalidArgument("top_p must be above 0", field="top_p")
    _check_range("top_k", params.top_k, -1, _MAX_TOP_K)
    _check_range("min_p", params.min_p, 0.0, 1.0)
    _check_range("seed", params.seed, -(2**63), 2**64 - 1)
    _check_range("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _check_range("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _check_range("repetition_penalty", params.repetition_penalty, 1e-6, 10.0)
    _check_range("logprobs", params.num_logprobs, 0, MAX_LOGPROBS)
    _check_range("truncate_prompt_tokens", params.truncate_prompt_tokens, -1, _MAX_TOP_K)
    if params.truncate_prompt_tokens == 0:
        raise InvalidArgument("truncate_prompt_tokens must be -1, or at least 1", field="truncate_prompt_tokens")
    _check_bias(params.logit_bias, num_token_ids)
    _check_min_tokens(params)
    _check_stops(params, num_token_ids)
    _check_end(params, mesh)
    _check_routing(params, mesh)


def check_prompt(token_ids: Sequence[int], mesh: model_pb2.MeshDescription, num_token_ids: int, field: str) -> None:
    """The prompt holds tokens, known ones, and leaves room for at least one more.

    Raises:
        InvalidArgument: the prompt is empty, or an id is unknown.
        ContextLengthExceeded: it leaves no room; with the numbers.
    """
    if not token_ids:
        raise InvalidArgument("the prompt is empty: it must have at least one token", field=field)
    if len(token_ids) >= mesh.max_context_tokens:
        raise context_error(len(token_ids), mesh.max_context_tokens, field)
    if min(token_ids) < 0 or max(token_ids) >= num_token_ids:
        raise InvalidArgument(f"token ids must be from 0 to {num_token_ids - 1}", field=field)


def truncated(token_ids: Sequence[int], params: GenerationParams, mesh: model_pb2.MeshDescription) -> Sequence[int]:
    """The end of a prompt that the request keeps."""
    wanted = params.truncate_prompt_tokens
    if wanted is None:
        return token_ids
    return token_ids[-(max(1, mesh.max_context_tokens - (params.max_tokens or 1)) if wanted < 0 else wanted) :]


def context_error(num_prompt_tokens: int, max_context_tokens: int, field: str) -> AllroadsError:
    """A prompt of so many tokens leaves no room in the window."""
    return ContextLengthExceeded(
        f"the context window has {max_context_tokens} tokens and the prompt {num_prompt_tokens}: "
        "it must leave room for at least 1 token of the answer",
        field=field,
    )


def make_plan(
    params: GenerationParams, token_ids: Sequence[int], mesh: model_pb2.MeshDescription, request_timeout_s: float
) -> Plan:
    """The plan of a request that passed both checks; `max_tokens` is clipped to the room left."""
    room = mesh.max_context_tokens - len(token_ids)
    routing = routing_to_wire(params.policy, params.parameters)
    routing.mode = params.mode
    if params.key:
        # Whoever it names, only that it is the same one goes further.
        routing.key = hashlib.sha256(params.key.encode(errors="replace")).hexdigest()
    open_request = model_pb2.OpenRequest(
        request_id=params.request_id,
        prompt_token_ids=token_ids,
        max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        sampling=_sampling(params),
        routing=routing,
        report_scores=params.report_scores,
    )
    return Plan(
        open_request=open_request,
        stop=params.stop,
        stop_token_ids=frozenset(params.stop_token_ids).union(() if params.ignore_eos else mesh.eos_token_ids),
        policy=params.policy or mesh.default_policy,
        tier_names=tuple(mesh.tier_names),
        timeout_s=request_timeout_s if params.timeout_s is None else min(params.timeout_s, request_timeout_s),
        shows_special_tokens=params.shows_special_tokens,
        shows_stop=params.shows_stop,
    )


def _sampling(params: GenerationParams) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(
        temperature=1.0 if params.temperature is None else params.temperature,
        top_p=params.top_p,
        top_k=None if params.top_k is None else max(params.top_k, 0),
        min_p=params.min_p,
        # Clients may send a signed seed; the wire's is unsigned.
        seed=None if params.seed is None else params.seed % 2**64,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
        min_tokens=params.min_tokens,
        num_logprobs=params.num_logprobs,
        grammar=None if params.grammar is None else params.grammar.to_wire(),
    )


def _check_range(field: str, value: float | None, low: float, high: float) -> None:
    # NaN is in no range.
    if value is not None and not low <= value <= high:
        raise InvalidArgument(f"{field} must be from {low:.10g} to {high:.10g}, not {value}", field=field)


def _check_bias(bias: Mapping[int, float], num_token_ids: int) -> None:
    if len(bias) > MAX_BIASES:
        raise InvalidArgument(
            f"logit_bias may hold {MAX_BIASES} token ids at most, not {len(bias)}", field="logit_bias"
        )
    if bias and max(bias) >= num_token_ids:
        raise InvalidArgument(
            f"the token ids of logit_bias must be from 0 to {num_token_ids - 1}, not {max(bias)}", field="logit_bias"
        )
    for value in bias.values():
        _check_range("logit_bias", value, -100.0, 100.0)


def _check_min_tokens(params: GenerationParams) -> None:
    _check_range("min_tokens", params.min_tokens, 0, _MAX_MIN_TOKENS)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidArgument(
            f"min_tokens must be at most max_tokens, which is {params.max_tokens}, not {params.min_tokens}",
            field="min_tokens",
        )


def _check_stops(params: GenerationParams, num_token_ids: int) -> None:
    if len(params.stop) > MAX_STOPS:
        raise InvalidArgument(f"stop may hold {MAX_STOPS} strings at most, not {len(params.stop)}", field="stop")
    if not all(0 < len(stop) <= MAX_STOP_CHARACTERS for stop in params.stop):
        raise InvalidArgument(f"a stop string must have from 1 to {MAX_STOP_CHARACTERS} characters", field="stop")
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidArgument(f"stop_token_ids may hold {MAX_STOP_TOKEN_IDS} ids at most", field="stop_token_ids")
    if not all(0 <= token_id < num_token_ids for token_id in params.stop_token_ids):
        raise InvalidArgument(f"stop_token_ids must be from 0 to {num_token_ids - 1}", field="stop_token_ids")


def _check_end(params: GenerationParams, mesh: model_pb2.MeshDescription) -> None:
    """Where a grammar ends there must be a token that ends the answer."""
    if params.grammar is None:
        return
    if params.ignore_eos:
        raise InvalidArgument(f"leave out ignore_eos: with {params.grammar.field} the answer ends", field="ignore_eos")
    if not mesh.eos_token_ids:
        field = params.grammar.field
        raise InvalidArgument(f"{field}: the models have no token that ends a text", field=field)


def _check_routing(params: GenerationParams, mesh: model_pb2.MeshDescription) -> None:
    if params.mode and params.mode not in MODES:
        raise InvalidArgument(
            f"there is no mode {params.mode[:64]!r}; there are {', '.join(MODES)}", field="routing.mode"
        )
    name = params.policy or mesh.default_policy
    policies = {policy.name: policy for policy in mesh.policies}
    if name not in policies:
        known = ", ".join(sorted(policies))
        raise InvalidArgument(f"there is no policy {name!r}; there are {known}", field="routing.policy")
    resolve_parameters(routing_to_wire(name, params.parameters), policies[name], len(mesh.tier_names))

"""Turn a client's open message into a request, or refuse it before any work is done."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..config import HomeSettings
from ..engine.grammar import FIELD, Grammar
from ..engine.sampling import SamplingParams
from ..engine.sequence import Sequence
from ..errors import AllroadsError, ContextLengthExceeded, Internal, InvalidArgument, Unavailable
from ..mesh.routing import resolve_parameters
from ..mesh.wire import model_pb2, router_pb2
from ..model.sampling_wire import sampling_from_wire
from ..policies.policy import HOME, Policy, RequestView
from ..policies.registry import PolicyRegistry
from .description import describe_policy
from .modes import mode_of, require_auditable
from .request import Request


@dataclass(slots=True)
class Bounds:
    """What all tiers of the mesh have in common; the larger ones' part is learnt when they come up."""

    num_tiers: int
    num_tokens: int
    """Size of the vocabulary."""
    max_context: int
    """The smallest window."""
    eos_token_ids: frozenset[int]
    """Union over all tiers."""


def open_request(
    stream_id: int,
    number: int,
    wire: model_pb2.OpenRequest,
    *,
    policy: Policy,
    policies: PolicyRegistry,
    settings: HomeSettings,
    scorers: Mapping[str, router_pb2.ScorerDescription],
    bounds: Bounds,
) -> Request:
    """A new request, not yet in the engine.

    Args:
        stream_id: the client's stream.
        number: the request's own number in this home.
        wire: what the client sent.
        policy: the policy that it asked for.
        policies: all that there are.
        settings: of the home: whether requests are routed.
        scorers: what the router has, by name.
        bounds: what the mesh allows.

    Raises:
        InvalidArgument: a field is wrong; names it.
        ContextLengthExceeded: prompt and answer do not fit the window.
        Unavailable: the router has not been met yet, and the policy needs it.
        Internal: the policy failed.
    """
    tokens = [*wire.prompt_token_ids, *wire.committed_token_ids]
    _check_tokens(wire, tokens, bounds)
    stop_token_ids = frozenset(wire.sampling.stop_token_ids)
    if not wire.sampling.ignore_eos:
        stop_token_ids |= bounds.eos_token_ids
    sampling = sampling_from_wire(wire.sampling, stop_token_ids)
    sampling.require_known_ids(bounds.num_tokens)
    if sampling.grammar is not None:
        sampling = _with_ends(sampling, sampling.grammar, bounds.eos_token_ids)
    mode = mode_of(wire, settings)
    if mode == "off":
        policy, parameters = policies.get(settings.writer), {}
    else:
        if policy.scorer is not None and policy.scorer not in scorers:
            raise _no_scorer(policy, scorers)
        parameters = resolve_parameters(wire.routing, describe_policy(policy, scorers), bounds.num_tiers)
    if mode == "audit":
        require_auditable(policy)
    view = RequestView(
        seed=sampling.seed,
        parameters=parameters,
        max_tokens=wire.max_tokens,
        num_tiers=bounds.num_tiers,
        num_tokens=bounds.num_tokens,
        is_greedy=sampling.is_greedy,
        position=len(wire.committed_token_ids),
    )
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
        view=view,
        reach=_reach(policy, view) if mode != "audit" else _audited_reach(settings, view),
        length=len(tokens),
        stop_token_ids=stop_token_ids,
        sends_logits=policy.wants_draft_logits(view),
        acts=mode != "audit",
        reports_scores=wire.report_scores,
    )
    request.usage.mode = mode
    request.usage.num_prompt_tokens = len(wire.prompt_token_ids)
    for tier in wire.committed_tiers:
        request.usage.num_committed_tokens[tier] += 1
        request.num_own = 0 if tier else request.num_own + 1
    return request


def _with_ends(sampling: SamplingParams, grammar: Grammar, eos_token_ids: frozenset[int]) -> SamplingParams:
    """The same parameters, and a grammar that knows which tokens end the answer on every tier."""
    if not eos_token_ids:
        raise InvalidArgument("the models of this mesh have no token that ends a text in a grammar", field=FIELD)
    if not eos_token_ids <= sampling.stop_token_ids:
        raise InvalidArgument("an answer with a grammar ends where that does: leave out ignore_eos", field="ignore_eos")
    return replace(sampling, grammar=replace(grammar, end_token_ids=eos_token_ids))


def _reach(policy: Policy, view: RequestView) -> frozenset[int]:
    """Where a policy may send the request, its parameters being all right."""
    try:
        policy.check(view)
        reach = policy.reach(view)
    except AllroadsError:
        raise
    except Exception as error:  # a plug-in may raise anything
        raise Internal(f"policy {policy.name} failed: {error}") from error
    if not reach or not reach.issubset(range(view.num_tiers)):
        raise Internal(f"policy {policy.name} failed: its reach is {sorted(reach)} of {view.num_tiers} tiers")
    return reach


def _audited_reach(settings: HomeSettings, view: RequestView) -> frozenset[int]:
    """Where a request goes whose policy decides on paper only: home, to propose, and to who writes."""
    return frozenset({HOME} if settings.writer == "slm" else {HOME, view.large})


def _no_scorer(policy: Policy, scorers: Mapping[str, router_pb2.ScorerDescription]) -> AllroadsError:
    if not scorers:
        return Unavailable("the router has not been met yet")
    return InvalidArgument(
        f"the policy {policy.name} needs the scorer {policy.scorer}, and the router of this mesh has "
        f"{', '.join(sorted(scorers))}: add it under router.scorers, or choose another policy",
        field="routing.policy",
    )


def _check_tokens(wire: model_pb2.OpenRequest, tokens: list[int], bounds: Bounds) -> None:
    if not wire.prompt_token_ids:
        raise InvalidArgument("the prompt is empty", field="prompt")
    if max(tokens) >= bounds.num_tokens:
        raise InvalidArgument(f"token id {max(tokens)} is not in the vocabulary of {bounds.num_tokens}", field="prompt")
    if wire.max_tokens < 1:
        raise InvalidArgument("max_tokens must be at least 1", field="max_tokens")
    if len(wire.committed_token_ids) >= wire.max_tokens:
        raise InvalidArgument("the answer has all its tokens already", field="committed_token_ids")
    is_known = all(tier < bounds.num_tiers for tier in wire.committed_tiers)
    if len(wire.committed_tiers) != len(wire.committed_token_ids) or not is_known:
        raise InvalidArgument("each committed token needs the tier that wrote it", field="committed_tiers")
    if len(wire.prompt_token_ids) + wire.max_tokens > bounds.max_context:
        raise ContextLengthExceeded(
            f"{len(wire.prompt_token_ids)} prompt tokens and {wire.max_tokens} to write are more than the context "
            f"window of {bounds.max_context}",
            field="max_tokens",
        )

"""What a home tells of itself and of the tiers behind it."""

from collections.abc import Mapping, Sequence

from ..config import HomeSettings
from ..engine.engine import Engine
from ..errors import CheckpointError, StartupError
from ..mesh.wire import model_pb2, router_pb2
from ..model.description import describe
from ..policies.policy import HOME, Parameter, Policy
from ..policies.registry import PolicyRegistry

Scorers = Mapping[str, router_pb2.ScorerDescription]
"""By name, as the router describes them."""


def require_routers_for_mesh(large: model_pb2.DescribeResponse, scorers: Scorers) -> None:
    """See that scorers were made for the largest model that is there, too: they learnt where that one differs.

    Raises:
        CheckpointError: one was made for another.
    """
    for scorer in scorers.values():
        if scorer.llm_id and scorer.llm_id != large.model_id:
            raise CheckpointError(
                f"the router was made for another large model ({scorer.llm_id}) than the one that is served "
                f"({large.model_id}): its scorer {scorer.name} is of no use; train a router for this pair"
            )


def require_default_policy(policy: Policy, scorers: Scorers) -> None:
    """See that requests which name no policy can be served.

    Raises:
        StartupError: the router lacks the scorer of the default policy.
    """
    if policy.scorer is not None and policy.scorer not in scorers:
        raise StartupError(
            f"slm.policy: {policy.name} needs the scorer {policy.scorer}, and the router has "
            f"{', '.join(sorted(scorers)) or 'none'}; add it under router.scorers, or choose another policy",
            field="slm.policy",
        )


def describe_home(
    engine: Engine,
    settings: HomeSettings,
    policies: PolicyRegistry,
    names: Sequence[str],
    larger: Sequence[model_pb2.DescribeResponse],
    scorers: Scorers,
) -> model_pb2.DescribeResponse:
    """The home's description, with that of the mesh.

    Args:
        engine: of the small model.
        settings: of the home.
        policies: those that are installed; what the router cannot serve is not told of.
        names: of all tiers.
        larger: descriptions of the larger tiers, in order.
        scorers: those of the router.
    """
    mine = describe(engine, settings, HOME)
    tiers = [mine, *larger]
    served = [policy for policy in policies.all() if policy.scorer is None or policy.scorer in scorers]
    mine.mesh.CopyFrom(
        model_pb2.MeshDescription(
            max_context_tokens=min(tier.max_context_tokens for tier in tiers),
            eos_token_ids=sorted({token_id for tier in tiers for token_id in tier.eos_token_ids}),
            policies=[describe_policy(policy, scorers) for policy in served],
            default_policy=settings.policy,
            tier_names=names,
            model_ids=[tier.model_id for tier in tiers],
            num_parameters=[tier.num_parameters for tier in tiers],
            num_router_parameters=sum(scorer.num_parameters for scorer in scorers.values()),
        )
    )
    return mine


def describe_policy(policy: Policy, scorers: Scorers) -> model_pb2.PolicyDescription:
    """A policy and its parameters; the threshold of its scorer's checkpoint is the default."""
    description = model_pb2.PolicyDescription(name=policy.name, summary=policy.summary, scorer=policy.scorer or "")
    scorer = scorers.get(policy.scorer or "")
    for parameter in policy.parameters:
        defaults = _defaults(parameter)
        if parameter.name == "threshold" and scorer is not None and scorer.HasField("threshold"):
            defaults = (scorer.threshold,)
        description.parameters.add(
            name=parameter.name,
            summary=parameter.summary,
            minimum=parameter.minimum,
            maximum=parameter.maximum,
            default_values=defaults,
            is_whole=parameter.is_whole,
            per_tier=parameter.per_tier,
        )
    return description


def default_threshold(policy: Policy, scorers: Scorers) -> float | None:
    """The threshold of requests that name none; None where there is none."""
    for parameter in describe_policy(policy, scorers).parameters:
        if parameter.name == "threshold" and parameter.default_values:
            return parameter.default_values[0]
    return None


def _defaults(parameter: Parameter) -> tuple[float, ...]:
    if parameter.default is None:
        return ()
    return parameter.default if isinstance(parameter.default, tuple) else (parameter.default,)

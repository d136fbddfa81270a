"""What a home tells of itself and of the tiers behind it."""

from ..config import HomeSettings
from ..engine.engine import Engine
from ..errors import CheckpointError
from ..mesh.wire import model_pb2, router_pb2
from ..model.description import describe
from ..policies.policy import HOME, Policy
from ..policies.registry import PolicyRegistry


def require_router_for_pair(tier: model_pb2.DescribeResponse, scorer: router_pb2.ScorerDescription) -> None:
    """See that the router was made for the larger model that is there, too: it learnt where that one differs.

    Raises:
        CheckpointError: it was made for another.
    """
    if scorer.llm_id and scorer.llm_id != tier.model_id:
        raise CheckpointError(
            f"the router was made for another large model ({scorer.llm_id}) than the one that is served "
            f"({tier.model_id}); train a router for this pair"
        )


def describe_home(
    engine: Engine,
    settings: HomeSettings,
    policies: PolicyRegistry,
    tier: model_pb2.DescribeResponse,
    scorer: router_pb2.ScorerDescription,
) -> model_pb2.DescribeResponse:
    """The home's description, with that of the mesh."""
    mine = describe(engine, settings, HOME)
    mine.mesh.CopyFrom(
        model_pb2.MeshDescription(
            max_context_tokens=min(mine.max_context_tokens, tier.max_context_tokens),
            eos_token_ids=sorted({*mine.eos_token_ids, *tier.eos_token_ids}),
            policies=[_describe_policy(policy, scorer) for policy in policies.all()],
            default_policy=settings.policy,
            model_ids=[mine.model_id, tier.model_id],
            num_parameters=[mine.num_parameters, tier.num_parameters],
            num_router_parameters=scorer.num_parameters,
        )
    )
    return mine


def _describe_policy(policy: Policy, scorer: router_pb2.ScorerDescription) -> model_pb2.PolicyDescription:
    description = model_pb2.PolicyDescription(name=policy.name, summary=policy.summary, needs_share=policy.needs_share)
    if policy.threshold is not None:
        scored = policy.scorer == scorer.name and scorer.HasField("threshold")
        description.default_threshold = scorer.threshold if scored else policy.threshold.default
        description.min_threshold = policy.threshold.minimum
        description.max_threshold = policy.threshold.maximum
    return description

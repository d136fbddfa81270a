"""The served model: its tiers, and the policies that requests may name."""

from dataclasses import dataclass

from ..mesh.wire import gateway_pb2, model_pb2


@dataclass(frozen=True, slots=True)
class Tier:
    """One of the models behind it."""

    name: str
    model: str
    num_parameters: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number of a policy that requests may set; both ends belong to its range."""

    name: str
    summary: str
    minimum: float
    maximum: float
    default: tuple[float, ...]
    """One value, or one for each tier; empty where requests must name it."""
    is_whole: bool
    per_tier: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """A way of deciding who writes a token."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A model as clients name it. Tiers and policies are empty until the gateway has met its mesh."""

    id: str
    created_unix_s: int
    max_context_tokens: int
    tiers: tuple[Tier, ...]
    """The small model's first, in the numbers of `Piece.tiers`."""
    default_policy: str
    policies: tuple[Policy, ...]


def model_of(card: gateway_pb2.ModelCard) -> Model:
    """A model from the wire."""
    mesh = card.mesh
    return Model(
        id=card.id,
        created_unix_s=card.created_unix_s,
        max_context_tokens=card.max_context_tokens,
        tiers=tuple(
            Tier(name, model, num_parameters)
            for name, model, num_parameters in zip(mesh.tier_names, mesh.model_ids, mesh.num_parameters, strict=False)
        ),
        default_policy=mesh.default_policy,
        policies=tuple(
            Policy(policy.name, policy.summary, tuple(_parameter_of(parameter) for parameter in policy.parameters))
            for policy in mesh.policies
        ),
    )


def _parameter_of(parameter: model_pb2.ParameterDescription) -> Parameter:
    return Parameter(
        name=parameter.name,
        summary=parameter.summary,
        minimum=parameter.minimum,
        maximum=parameter.maximum,
        default=tuple(parameter.default_values),
        is_whole=parameter.is_whole,
        per_tier=parameter.per_tier,
    )

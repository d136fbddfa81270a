"""A request's policy parameters on the wire: made, and checked against what the policy declares.

The gateway checks them at the door and the home once more, both by this.
"""

import math
from collections.abc import Mapping, Sequence

from ..errors import InvalidArgument
from .wire import common_pb2 as pb
from .wire import model_pb2

Parameters = dict[str, tuple[float, ...]]
"""Values by name: one each, or one for each tier."""


def routing_to_wire(policy: str, parameters: Mapping[str, float | Sequence[float]]) -> pb.Routing:
    """A request's policy, empty for the mesh's default, with its parameters."""
    return pb.Routing(
        policy=policy,
        parameters={
            name: pb.Numbers(values=[value] if isinstance(value, int | float) else value)
            for name, value in parameters.items()
        },
    )


def resolve_parameters(routing: pb.Routing, policy: model_pb2.PolicyDescription, num_tiers: int) -> Parameters:
    """All parameters of a policy: those of the request, and defaults for the others.

    Raises:
        InvalidArgument: one is unknown, missing, of the wrong number, or out of its range; names the field and
            the range.
    """
    declared = {parameter.name: parameter for parameter in policy.parameters}
    for name in routing.parameters:
        if name not in declared:
            takes = ", ".join(declared) or "none"
            raise InvalidArgument(
                f"the policy {policy.name} takes no {name}; its parameters: {takes}", field=f"routing.{name}"
            )
    return {name: _resolve(routing, policy.name, parameter, num_tiers) for name, parameter in declared.items()}


def _resolve(
    routing: pb.Routing, policy: str, parameter: model_pb2.ParameterDescription, num_tiers: int
) -> tuple[float, ...]:
    name = parameter.name
    field = f"routing.{name}"
    given = name in routing.parameters
    values = tuple(routing.parameters[name].values if given else parameter.default_values)
    needed = num_tiers if parameter.per_tier else 1
    kind = "a whole number" if parameter.is_whole else "a number"
    what = f"{kind} from {parameter.minimum:g} to {parameter.maximum:g}"
    if parameter.per_tier:
        what = f"{needed} numbers from {parameter.minimum:g} to {parameter.maximum:g}, one for each tier"
    if not given and len(values) != needed:
        raise InvalidArgument(f"{policy} needs {name}: {what}", field=field)
    fits = len(values) == needed and all(_is_in_range(value, parameter) for value in values)
    if not fits:
        shown = ", ".join(f"{value:g}" for value in values[:8])
        raise InvalidArgument(f"the {name} of {policy} must be {what}, not {shown or 'nothing'}", field=field)
    return values


def _is_in_range(value: float, parameter: model_pb2.ParameterDescription) -> bool:
    """NaN is in no range."""
    return parameter.minimum <= value <= parameter.maximum and (not parameter.is_whole or value == math.floor(value))

"""Every parameter of every policy: its range is the door, and its default is inside."""

import math

import pytest
from allroads.errors import InvalidArgument
from allroads.mesh.routing import resolve_parameters, routing_to_wire
from allroads.policies.policy import Parameter, Policy
from allroads.policies.registry import PolicyRegistry
from allroads.slm.description import describe_policy

from .views import Value, view

POLICIES = {policy.name: policy for policy in PolicyRegistry.load().all()}
ALL = [
    pytest.param(policy, parameter, id=f"{policy.name}-{parameter.name}")
    for policy in POLICIES.values()
    for parameter in policy.parameters
]
NUM_TIERS = 3


def _resolve(policy: Policy, given: dict[str, Value]) -> dict[str, tuple[float, ...]]:
    # What requests must name is named.
    needed: dict[str, Value] = {own.name: own.minimum for own in policy.parameters if own.default is None}
    return resolve_parameters(
        routing_to_wire(policy.name, {**needed, **given}), describe_policy(policy, {}), num_tiers=NUM_TIERS
    )


def _value(parameter: Parameter, value: float) -> Value:
    return [value] * NUM_TIERS if parameter.per_tier else value


@pytest.mark.parametrize(("policy", "parameter"), ALL)
def test_both_ends_are_taken_and_what_is_beyond_is_refused_with_the_range(policy: Policy, parameter: Parameter) -> None:
    count = NUM_TIERS if parameter.per_tier else 1
    for end in (parameter.minimum, parameter.maximum):
        assert _resolve(policy, {parameter.name: _value(parameter, end)})[parameter.name] == (end,) * count
    width = parameter.maximum - parameter.minimum
    bad: list[Value] = [
        _value(parameter, value)
        for value in (parameter.minimum - width / 10, parameter.maximum + width / 10, math.nan, math.inf, -math.inf)
    ]
    bad += [[], [parameter.minimum] * (count + 1)]
    if parameter.is_whole:
        bad.append(parameter.minimum + 0.5)
    for value in bad:
        with pytest.raises(InvalidArgument) as caught:
            _resolve(policy, {parameter.name: value})
        assert caught.value.field == f"routing.{parameter.name}"
        assert f"from {parameter.minimum:g} to {parameter.maximum:g}" in str(caught.value)


@pytest.mark.parametrize(("policy", "parameter"), ALL)
def test_a_default_is_in_the_range_and_what_has_none_must_be_named(policy: Policy, parameter: Parameter) -> None:
    if parameter.default is not None:
        assert _resolve(policy, {})[parameter.name]
        return
    with pytest.raises(InvalidArgument, match=f"needs {parameter.name}: a number from"):
        resolve_parameters(routing_to_wire(policy.name, {}), describe_policy(policy, {}), NUM_TIERS)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_an_unknown_parameter_is_refused_with_those_there_are(policy: Policy) -> None:
    with pytest.raises(InvalidArgument, match="takes no temperament") as caught:
        _resolve(policy, {"temperament": 1.0})
    assert caught.value.field == "routing.temperament"
    for parameter in policy.parameters:
        assert parameter.name in str(caught.value)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_never_and_always_are_taken(policy: Policy) -> None:
    for ends in (policy.never, policy.always):
        if ends is not None:
            policy.check(view(policy, num_tiers=NUM_TIERS, given=dict(ends)))


def test_published_defaults() -> None:
    defaults = {
        name: {parameter.name: parameter.default for parameter in policy.parameters}
        for name, policy in POLICIES.items()
    }
    assert defaults["citer"] == {"threshold": 0.98}
    assert defaults["co-llm"] == {"threshold": 0.15}
    assert defaults["r-stitch"] == {"threshold": 0.03}
    assert defaults["me"] == {"weights": (0.5, 0.3, 0.2)}
    assert defaults["entropy"] == {"threshold": 0.45}
    assert defaults["immediate"] == {"threshold": 2.275, "epistemic": 0.0, "entropy": 0.0}
    assert defaults["momentum"] == {"threshold": 2.275, "momentum": 0.7, "lower": 0.3, "upper": 0.7}
    assert defaults["rolling"] == {"threshold": 2.275, "entropy": 0.02, "window": 3}
    assert defaults["bild"] == {"draft_tokens": 10, "fallback": 0.6, "rollback": 5.0}
    for name in ("speculative", "lossless"):
        assert defaults[name] == {"draft_tokens": 8, "draft_cost": 0.15, "adaptive": 1}


def test_a_mesh_of_another_size_must_name_the_weights() -> None:
    with pytest.raises(InvalidArgument, match="2 numbers from 0 to 1000, one for each tier"):
        view(POLICIES["me"], num_tiers=2)
    assert view(POLICIES["me"], num_tiers=2, given={"weights": [1, 2]}).parameters["weights"] == (1.0, 2.0)

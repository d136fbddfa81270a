"""The served model as `/v1/models` shows it: OpenAI's fields, and what the mesh behind it can do."""

import math
from typing import Any

from ...mesh.wire import model_pb2


def model_card(name: str, created_unix_s: int, mesh: model_pb2.MeshDescription | None) -> dict[str, Any]:
    """The card of a model; what only the mesh can tell is null until that was met."""
    return {
        "id": name,
        "object": "model",
        "created": created_unix_s,
        "owned_by": "allroads",
        "max_model_len": None if mesh is None else mesh.max_context_tokens,
        "allroads": None if mesh is None else _mesh_block(mesh),
    }


def _mesh_block(mesh: model_pb2.MeshDescription) -> dict[str, Any]:
    return {
        "tiers": [
            {"name": name, "model": model_id, "num_parameters": num_parameters}
            for name, model_id, num_parameters in zip(
                mesh.tier_names, mesh.model_ids, mesh.num_parameters, strict=False
            )
        ],
        "default_policy": mesh.default_policy,
        "policies": [_policy(policy, len(mesh.tier_names)) for policy in mesh.policies],
    }


def _policy(policy: model_pb2.PolicyDescription, num_tiers: int) -> dict[str, Any]:
    return {
        "name": policy.name,
        "summary": policy.summary,
        "scorer": policy.scorer or None,
        "parameters": [_parameter(parameter, num_tiers) for parameter in policy.parameters],
    }


def _parameter(parameter: model_pb2.ParameterDescription, num_tiers: int) -> dict[str, Any]:
    defaults: list[float | None] = [_number(value, parameter) for value in parameter.default_values]
    default: list[float | None] | float | None = None
    if len(defaults) == (num_tiers if parameter.per_tier else 1):
        default = defaults if parameter.per_tier else defaults[0]
    return {
        "name": parameter.name,
        "summary": parameter.summary,
        "minimum": _number(parameter.minimum, parameter),
        "maximum": _number(parameter.maximum, parameter),
        "default": default,
        "whole": parameter.is_whole,
        "per_tier": parameter.per_tier,
    }


def _number(value: float, parameter: model_pb2.ParameterDescription) -> float | None:
    """As JSON has it: null for infinity."""
    if not math.isfinite(value):
        return None
    return int(value) if parameter.is_whole else value

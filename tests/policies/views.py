"""Requests and proposals as policies see them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from allroads.engine.sampling import SamplingParams
from allroads.mesh.routing import resolve_parameters, routing_to_wire
from allroads.policies.policy import Drafts, Policy, Proposals, RequestView, Verdict
from allroads.slm.description import describe_policy
from torch import Tensor

from ..engine.sampling_reference import PlainRow

Value = float | Sequence[float]


def view(policy: Policy, *, num_tiers: int = 2, given: Mapping[str, Value] | None = None, **fields: Any) -> RequestView:
    """A request with these parameters, and defaults for the others."""
    resolved = resolve_parameters(routing_to_wire(policy.name, given or {}), describe_policy(policy, {}), num_tiers)
    fields.setdefault("max_tokens", 100)
    fields.setdefault("seed", 0)
    return RequestView(parameters=resolved, num_tiers=num_tiers, num_tokens=fields.pop("num_tokens", 100), **fields)


def route_one(policy: Policy, request: RequestView, tier: int = 0, **numbers: Any) -> Verdict:
    """The verdict on one proposal, of which these numbers are known."""
    (verdict,) = policy.route(Proposals([request], [7], tier=tier, **{name: [own] for name, own in numbers.items()}))
    return verdict


def draft_of(
    request: RequestView,
    token_ids: list[int],
    large: Tensor,
    small: Tensor | None = None,
    sampling: SamplingParams | None = None,
) -> Drafts:
    """Drafts of one request, the first of which is at the request's position."""
    params = sampling or SamplingParams(temperature=0.0 if request.is_greedy else 1.0, seed=request.seed)
    rows = [PlainRow(params, answer=token_ids[:count], skipped=request.position) for count in range(len(token_ids) + 1)]
    return Drafts([request], [token_ids], [large], [rows], [small])


def join(parts: Sequence[Drafts]) -> Drafts:
    """Drafts of several requests."""
    return Drafts(
        [request for part in parts for request in part.requests],
        [token_ids for part in parts for token_ids in part.token_ids],
        [logits for part in parts for logits in part.logits],
        [rows for part in parts for rows in part.rows],
        [small for part in parts for small in part.draft_logits],
    )


def peaked(token_ids: Sequence[int], vocabulary: int, height: float = 20.0) -> Tensor:
    """Logits, a row for each id, that leave it next to all probability."""
    logits = torch.randn(len(token_ids), vocabulary, generator=torch.Generator().manual_seed(len(token_ids)))
    logits[torch.arange(len(token_ids)), torch.tensor(token_ids)] += height
    return logits

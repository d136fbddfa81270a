"""The whole suite: every line that a policy must pass, in the order in which a failure says most."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from ..config import MeshSettings
from ..errors import AllroadsError
from ..policies.registry import PolicyRegistry
from .bench import Bench, make_bench
from .bounds import bad_parameters_are_refused
from .endings import (
    aborts_free_all_tiers,
    large_stop_ends,
    max_tokens_counts_committed,
    small_stop_ends,
    tokens_are_counted_by_tier,
)
from .equality import (
    always_is_large,
    batched_is_alone,
    equals_reference,
    equals_reference_sampled,
    neighbours_are_unaffected,
    never_is_small,
)
from .mesh_client import MeshClient
from .result import Finding, failed
from .slow_mesh import SlowMesh

Check = Callable[[Bench], Awaitable[Finding]]

CHECKS: Mapping[str, Check] = {
    "equals the slow reference, greedy": equals_reference,
    "equals the slow reference, sampled": equals_reference_sampled,
    "never-route equals the small model alone": never_is_small,
    "always-route equals the large model alone": always_is_large,
    "batched equals alone": batched_is_alone,
    "other policies' requests are unaffected": neighbours_are_unaffected,
    "a stop token of the small model ends the answer": small_stop_ends,
    "a stop token of a larger model ends the answer": large_stop_ends,
    "max_tokens counts committed tokens": max_tokens_counts_committed,
    "tokens are counted by tier": tokens_are_counted_by_tier,
    "an abort frees KV on all tiers": aborts_free_all_tiers,
    "parameters out of range are refused": bad_parameters_are_refused,
}
"""By what they say of a policy that passes."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one check found."""

    name: str
    """Of `CHECKS`."""
    finding: Finding


async def run_suite(
    settings: MeshSettings,
    name: str,
    parameters: Mapping[str, float | Sequence[float]],
    *,
    policies: PolicyRegistry,
    reference: SlowMesh,
    num_prompts: int,
    timeout_s: float,
) -> AsyncIterator[Result]:
    """Check a policy on a mesh that runs, one result after the other.

    Args:
        settings: of the mesh, with all addresses.
        name: of the policy.
        parameters: of its requests; others have their default.
        policies: this process's own.
        reference: of the same settings and policies.
        num_prompts: answers that must be compared in each check of equality.
        timeout_s: for an answer.

    Raises:
        AllroadsError: the mesh does not answer, or the policy cannot be asked with these parameters.
    """
    async with MeshClient(settings.slm.address, timeout_s=timeout_s) as client:
        described = await client.describe()
        bench = make_bench(settings, described, policies, name, parameters, client, reference, num_prompts=num_prompts)
        await bench.ask_main()
        for title, check in CHECKS.items():
            try:
                finding = await check(bench)
            except AllroadsError as error:
                finding = failed([error.message])
            yield Result(title, finding)

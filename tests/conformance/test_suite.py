"""The suite passes for our policies, and fails for wrong ones in the check that names their fault."""

from collections.abc import Mapping

import pytest
from allroads.conformance.result import Outcome
from allroads.conformance.slow_mesh import SlowMesh
from allroads.conformance.suite import CHECKS, run_suite
from allroads.errors import InvalidArgument
from allroads.policies.registry import PolicyRegistry

from ..doubles.processes import MeshProcesses

GREEDY = "equals the slow reference, greedy"
SAMPLED = "equals the slow reference, sampled"
NEVER = "never-route equals the small model alone"
ALWAYS = "always-route equals the large model alone"
ALONE = "batched equals alone"


async def outcomes(
    mesh: MeshProcesses,
    policies: PolicyRegistry,
    reference: SlowMesh,
    name: str,
    parameters: Mapping[str, float],
    num_prompts: int = 8,
) -> dict[str, tuple[Outcome, str]]:
    found = run_suite(
        mesh.settings,
        name,
        parameters,
        policies=policies,
        reference=reference,
        num_prompts=num_prompts,
        timeout_s=30,
    )
    return {result.name: (result.finding.outcome, result.finding.reason) async for result in found}


@pytest.mark.parametrize(
    ("name", "parameters", "num_prompts"),
    [
        ("entropy", {"threshold": 2.0}, 12),
        ("citer", {"threshold": 0.5}, 8),
        ("r-stitch", {"threshold": 0.35}, 8),
        ("bild", {"rollback": 15.0, "fallback": 0.1}, 8),
        ("cascade-v3", {"alpha": 0.999}, 8),
        ("me", {}, 8),
    ],
)
async def test_our_policies_pass(
    name: str,
    parameters: Mapping[str, float],
    num_prompts: int,
    mesh: MeshProcesses,
    policies: PolicyRegistry,
    reference: SlowMesh,
) -> None:
    found = await outcomes(mesh, policies, reference, name, parameters, num_prompts)
    assert found.keys() == CHECKS.keys()
    policy = policies.get(name)
    skipped = {check for check, end in ((NEVER, policy.never), (ALWAYS, policy.always)) if end is None}
    assert {check: reason for check, (outcome, reason) in found.items() if outcome is Outcome.FAIL} == {}
    assert {check for check, (outcome, _) in found.items() if outcome is Outcome.SKIP} == skipped


@pytest.mark.parametrize(
    ("name", "failing", "passing", "said"),
    [
        ("wrong-batch", ALONE, NEVER, "of prompt 0: alone the mesh wrote"),
        ("wrong-shared", ALONE, NEVER, "does the policy go by anything but the request?"),
        ("wrong-never", NEVER, GREEDY, "position 1 of prompt 0: the mesh wrote"),
        ("wrong-receive", ALWAYS, GREEDY, "llm alone wrote"),
        ("wrong-raises", GREEDY, "other policies' requests are unaffected", "a fault of the plug-in"),
    ],
)
async def test_wrong_policies_fail_where_they_are_wrong(
    name: str,
    failing: str,
    passing: str,
    said: str,
    mesh: MeshProcesses,
    policies: PolicyRegistry,
    reference: SlowMesh,
) -> None:
    found = await outcomes(mesh, policies, reference, name, {})
    assert found[failing][0] is Outcome.FAIL
    assert said in found[failing][1]
    assert found[passing][0] is not Outcome.FAIL


async def test_a_policy_that_cannot_be_asked_is_refused_at_once(
    mesh: MeshProcesses, policies: PolicyRegistry, reference: SlowMesh
) -> None:
    with pytest.raises(InvalidArgument, match="unknown policy 'nothing'"):
        await outcomes(mesh, policies, reference, "nothing", {})
    with pytest.raises(InvalidArgument, match="the threshold of entropy must be a number from 0 to 20, not 21"):
        await outcomes(mesh, policies, reference, "entropy", {"threshold": 21.0})
    with pytest.raises(InvalidArgument, match="lower limit of momentum"):
        await outcomes(mesh, policies, reference, "momentum", {"lower": 0.9})

"""What `allroads policy check` does: starts the services of a mesh as `allroads up` does, and runs the suite on it."""

import asyncio
from collections.abc import Mapping, Sequence

from ..config import MeshSettings
from ..conformance.slow_mesh import SlowMesh
from ..conformance.suite import CHECKS, Result, run_suite
from ..policies.registry import PolicyRegistry
from .console import stderr
from .mesh_for import MeshFor, with_mesh


async def check_on_mesh(
    settings: MeshSettings,
    name: str,
    parameters: Mapping[str, Sequence[float]],
    *,
    num_prompts: int,
    timeout_s: float,
    ready_timeout_s: float,
) -> list[Result]:
    """Run the suite on a mesh of these settings, without its gateway.

    Raises:
        InvalidArgument: there is no such policy, or its parameters are wrong.
        StartupError: the set-up is wrong.
        Unavailable: a service failed.
        Cancelled: a signal asked to stop.
    """
    policies = PolicyRegistry.load()
    policies.get(name)

    async def run_checks(mesh: MeshFor) -> list[Result]:
        reference = await asyncio.to_thread(SlowMesh, mesh.settings, policies)
        await mesh.until_ready()
        results: list[Result] = []
        with stderr().status("") as status:
            status.update(f"checking {name}")
            async for result in run_suite(
                mesh.settings,
                name,
                parameters,
                policies=policies,
                reference=reference,
                num_prompts=num_prompts,
                timeout_s=timeout_s,
            ):
                results.append(result)
                status.update(f"checking {name}: {len(results)} of {len(CHECKS)}")
        return results

    return await with_mesh(settings, run_checks, speaker="check", ready_timeout_s=ready_timeout_s, without=("gateway",))

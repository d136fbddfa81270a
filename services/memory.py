"""Turns `num_kv_tokens: auto` and `memory_bytes: auto` into numbers, the same in every service of a mesh.

Services that read the same settings and files must come to the same numbers by themselves, whichever of them starts
first. So "auto" shares out a part of what a GPU has, which never changes, and not of what is free, which the first
service to load changes for all others:

    memory_bytes = memory_share * (what the GPU has) - (what steps of each service on it need: `step_memory`)

That it is free is made sure of besides: `allroads up` looks before it starts anything, and each service looks for its
own part before it loads (`engine/cuda_device.py`).
"""

from pathlib import Path
from typing import Literal

from .allotment import ModelNeeds, allot
from .config import MeshSettings, RouterSettings
from .errors import StartupError
from .gpus import AskGpus, GpuFacts, ask_gpus, canonical, ordinal_of
from .model_size import DTYPE_BYTES
from .placement import devices_of, part_size, services_on
from .step_memory import ROUTER_BYTES, model_step_bytes
from .weight_headers import input_embedding, stored_tensors


def resolve_memory(settings: MeshSettings, ask: AskGpus = ask_gpus, *, before_start: bool = False) -> MeshSettings:
    """The same mesh with a number of KV tokens for every tier, which fits `memory_bytes`, in which are numbers, too.

    Reads headers of the weights, of all models on a device whose memory is limited. Resolving twice changes
    nothing.

    Args:
        settings: of the mesh.
        ask: tells of GPUs; called where "auto" needs it.
        before_start: whether nothing of the mesh runs yet, so that what "auto" shares out must be free.

    Raises:
        StartupError: "auto" for a device that does not allow it, no such GPU, or what is asked for does not fit.
        CheckpointError: a model's files are missing or damaged.
    """
    placed = services_on(settings)
    limits = _limits(settings, placed)
    gpus = {
        device: ordinal
        for device, limit in limits.items()
        if limit == "auto" and (ordinal := ordinal_of(device)) is not None
    }
    facts = ask(list(gpus.values())) if gpus else {}
    budgets: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for device, limit in limits.items():
        needs = [_needs(settings, name) for name in placed[device]]
        if limit == "auto":
            gpu = facts[gpus[device]]
            allotted, budgets[device] = _allot_share(settings, gpu, placed[device], needs, before_start=before_start)
        else:
            allotted, budgets[device] = allot(device, limit, needs), limit
        for key, number in allotted.items():
            # A model that is cut has as many on each of its devices as there are on the one with the least room.
            numbers[key] = min(number, numbers.get(key, number))
    keys = {name: settings.key_of(name) for name in settings.tiers}
    resolved = settings.with_internal(
        {name: {"num_kv_tokens": numbers[key]} for name, key in keys.items() if key in numbers}
    )
    named = {canonical(name): name for name in settings.memory_bytes}
    return resolved.model_copy(
        update={"memory_bytes": {named.get(device, device): budget for device, budget in budgets.items()}}
    )


def _limits(settings: MeshSettings, placed: dict[str, list[str]]) -> dict[str, int | Literal["auto"]]:
    """What is said of devices, and "auto" for GPUs of which nothing is, though a model there wants to know."""
    limits = {canonical(device): limit for device, limit in settings.memory_bytes.items()}
    if len(limits) < len(settings.memory_bytes) or limits.keys() - placed.keys():
        raise StartupError(
            f"memory_bytes: {', '.join(settings.memory_bytes)} must be devices of this mesh, each named once; "
            f"the models are on {', '.join(sorted(placed))}",
            field="memory_bytes",
        )
    for device, limit in limits.items():
        if limit == "auto" and ordinal_of(device) is None:
            raise StartupError(
                f'memory_bytes: "auto" is for GPUs, as {device} does not tell how much of it may be taken: set it '
                "to a number of bytes",
                field="memory_bytes",
            )
    for name, tier in settings.tiers.items():
        for device in devices_of(tier):
            if tier.num_kv_tokens != "auto" or device in limits:
                continue
            if ordinal_of(device) is None:
                key = settings.key_of(name)
                raise StartupError(
                    f'{key}.num_kv_tokens is "auto", but memory_bytes does not tell how much of {device} may be '
                    f"taken: set memory_bytes: {{{device}: <bytes>}}, or {key}.num_kv_tokens to a number",
                    field="memory_bytes",
                )
            limits[device] = "auto"
    return limits


def _allot_share(
    settings: MeshSettings, gpu: GpuFacts, names: list[str], needs: list[ModelNeeds], *, before_start: bool
) -> tuple[dict[str, int], int]:
    """What `allot` gives of `memory_share` of a GPU, and the bytes that weights and KV may take there."""
    device = f"cuda:{gpu.ordinal}"
    share_bytes = int(settings.memory_share * gpu.total_bytes)
    if before_start and share_bytes > gpu.free_bytes:
        raise StartupError(
            f"memory_share is {settings.memory_share:g}, which is {share_bytes} of the {gpu.total_bytes} bytes of "
            f"{device} ({gpu.name}), and {gpu.free_bytes} are free: lower memory_share to "
            f"{int(100 * gpu.free_bytes / gpu.total_bytes) / 100:g}, or end what else is there (nvidia-smi lists it)",
            field="memory_share",
        )
    step_bytes = sum(ROUTER_BYTES if name == "router" else model_step_bytes(settings.tiers[name]) for name in names)
    budget_bytes = max(0, share_bytes - step_bytes)
    try:
        return allot(device, budget_bytes, needs), budget_bytes
    except StartupError as error:
        raise StartupError(
            f'{error.message}. It was "auto": memory_share {settings.memory_share:g} of {gpu.total_bytes} bytes, less '
            f"{step_bytes} for steps, which a smaller max_step_tokens lowers",
            field="memory_bytes",
        ) from error


def _needs(settings: MeshSettings, name: str) -> ModelNeeds:
    """What a service takes on each of its devices."""
    if name == "router":
        return _router_needs(settings)
    tier, key = settings.tiers[name], settings.key_of(name)
    weight_bytes, kv_bytes_per_token = part_size(tier, key)
    return ModelNeeds(
        name=key,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        block_size_tokens=tier.block_size_tokens,
        num_kv_tokens=None if tier.num_kv_tokens == "auto" else tier.num_kv_tokens,
    )


def _router_needs(settings: MeshSettings) -> ModelNeeds:
    """The scorers' weights and the router's copy of the small model's embedding, all in float32; no KV."""
    embeddings = stored_tensors(settings.slm.path)
    embedding = embeddings[input_embedding(embeddings, settings.slm.path)]
    return ModelNeeds(
        name="router",
        weight_bytes=_scorer_weight_bytes(settings.router) + embedding.num_values * DTYPE_BYTES["float32"],
        kv_bytes_per_token=0,
        block_size_tokens=1,
        num_kv_tokens=0,
    )


def _scorer_weight_bytes(router: RouterSettings) -> int:
    return sum(_checkpoint_bytes(path) for path in (router.path, *router.scorers.values()))


def _checkpoint_bytes(path: Path) -> int:
    if path.is_file():
        # A published .pt file says how large it is, and not what it holds before torch has read it.
        return path.stat().st_size
    return sum(tensor.num_values for tensor in stored_tensors(path).values()) * DTYPE_BYTES["float32"]

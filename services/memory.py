"""Turns `num_kv_tokens: auto` into numbers, the same in every service that reads the same settings and files."""

from pathlib import Path

from .allotment import ModelNeeds, allot
from .config import MeshSettings, ModelSettings, RouterSettings
from .errors import StartupError
from .model_size import DTYPE_BYTES, model_size
from .weight_headers import input_embedding, stored_tensors


def resolve_memory(settings: MeshSettings) -> MeshSettings:
    """The same mesh with a number of KV tokens for every tier, which fits `memory_bytes` where that is given.

    Reads headers of the weights, of all models on a device whose memory is given. Resolving twice changes
    nothing.

    Raises:
        StartupError: "auto" on a device without memory_bytes, or what is asked for does not fit.
        CheckpointError: a model's files are missing or damaged.
    """
    tiers = {settings.key_of(name): tier for name, tier in settings.tiers.items()}
    budgets = {_canonical(device): num_bytes for device, num_bytes in settings.memory_bytes.items()}
    used = {_canonical(part.device) for part in settings.internal.values()}
    if len(budgets) < len(settings.memory_bytes) or budgets.keys() - used:
        raise StartupError(
            f"memory_bytes: {', '.join(settings.memory_bytes)} must be devices of this mesh, each named once; "
            f"the models are on {', '.join(sorted(used))}",
            field="memory_bytes",
        )
    for key, tier in tiers.items():
        if tier.num_kv_tokens == "auto" and _canonical(tier.device) not in budgets:
            raise StartupError(
                f'{key}.num_kv_tokens is "auto", but memory_bytes does not tell how much of {tier.device} may be '
                f"taken: set memory_bytes: {{{tier.device}: <bytes>}}, or {key}.num_kv_tokens to a number",
                field="memory_bytes",
            )
    numbers: dict[str, int] = {}
    for device, budget_bytes in budgets.items():
        models = [_tier_needs(key, tier) for key, tier in tiers.items() if _canonical(tier.device) == device]
        if _canonical(settings.router.device) == device:
            models.append(_router_needs(settings))
        numbers |= allot(device, budget_bytes, models)
    keys = {name: settings.key_of(name) for name in settings.tiers}
    return settings.with_internal(
        {name: {"num_kv_tokens": numbers[key]} for name, key in keys.items() if key in numbers}
    )


def _tier_needs(key: str, tier: ModelSettings) -> ModelNeeds:
    size = model_size(tier.path, tier.dtype)
    return ModelNeeds(
        name=key,
        weight_bytes=size.weight_bytes,
        kv_bytes_per_token=size.kv_bytes_per_token,
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


def _canonical(device: str) -> str:
    """One spelling of a device: torch takes `cuda` for `cuda:0`, and there is one `cpu`."""
    kind, _, index = device.partition(":")
    return kind if kind == "cpu" else f"{kind}:{index or 0}"

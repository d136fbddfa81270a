"""What is looked at before a mesh with GPUs starts, and what is told of processes that share one."""

import logging
from collections.abc import Mapping

from ..config import MeshSettings, ModelSettings
from ..cuda.sharing import advice, detect_mps
from ..errors import StartupError
from ..gpus import AskGpus, GpuFacts, ordinal_of
from ..placement import require_even_heads, services_on

logger = logging.getLogger(__name__)


def check_gpus(settings: MeshSettings, ask: AskGpus) -> Mapping[int, GpuFacts]:
    """Facts of all GPUs that a mesh uses; nobody is asked where it uses none.

    Raises:
        StartupError: one is not there, or cannot do what its model needs.
    """
    for name, tier in settings.tiers.items():
        if tier.tensor_parallel > 1:
            require_even_heads(tier, settings.key_of(name))
    users = services_on(settings)
    ordinals = {device: ordinal for device in users if (ordinal := ordinal_of(device)) is not None}
    if not ordinals:
        return {}
    facts = ask(sorted(ordinals.values()))
    for device, ordinal in ordinals.items():
        for name in users[device]:
            part = settings.internal[name]
            if isinstance(part, ModelSettings):
                _require_dtype(facts[ordinal], part, settings.key_of(name))
    return facts


def tell_of_turns(settings: MeshSettings) -> None:
    """One line for each GPU on which services in processes of their own take turns, and what to do about it."""
    shared = {
        device: sorted(set(users))
        for device, users in services_on(settings).items()
        if ordinal_of(device) is not None and len(set(users)) > 1
    }
    if not shared:
        return
    mps = detect_mps()
    for device, names in shared.items():
        if mps.is_running:
            logger.info("%s share %s by CUDA MPS: %s", ", ".join(names), device, mps.reason)
        else:
            logger.warning("%s (%s)", advice(device, names), mps.reason)


def _require_dtype(facts: GpuFacts, part: ModelSettings, key: str) -> None:
    try:
        facts.require_dtype(part.dtype)
    except StartupError as error:
        raise StartupError(f"{key}: {error.message}", field=f"{key}.device") from error

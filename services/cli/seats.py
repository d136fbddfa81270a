"""Which of a service's processes this one is, where its model is cut over several."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..config import MeshSettings, TierSettings
from ..engine.place import Place
from ..errors import StartupError


@dataclass(frozen=True)
class Seat:
    """What this process is to its service."""

    place: Place
    starts_others: bool
    """Whether it is the first one and nobody else has started the rest."""

    @property
    def speaker(self) -> str:
        """What its lines in the log add to the service's name."""
        return f".{self.place.rank}" if self.place.rank else ""


def seat_of(service: str, settings: MeshSettings, rank: int | None, meeting: Path | None) -> Seat | None:
    """What this process is to a service; None where it is the only one.

    Args:
        service: its name.
        settings: of the mesh.
        rank: given by the first process to those that it starts; None elsewhere.
        meeting: as well: the directory where all meet.

    Raises:
        StartupError: torchrun has started another number of processes than the settings say.
    """
    tier = settings.tiers.get(service)
    size = 1 if tier is None else tier.tensor_parallel
    if rank is not None:
        return Seat(Place(rank, size, meeting), starts_others=False)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        started = int(os.environ["WORLD_SIZE"])
        if started != size:
            key = f"{settings.key_of(service)}.tensor_parallel"
            raise StartupError(
                f"torchrun has started {started} processes of {service}, but {key} is {size}: let it start as many, or "
                "leave torchrun away",
                field=key,
            )
        return Seat(Place(int(os.environ["RANK"]), size), starts_others=False) if size > 1 else None
    return Seat(Place(0, size), starts_others=True) if size > 1 else None


def check_ranks(settings: MeshSettings, *, single_process: bool = False) -> None:
    """Refuse what cannot be where a model is cut over processes.

    Raises:
        StartupError: the mesh is one process, or KV is to be lent or adopted, or a library is missing.
    """
    for name, tier in settings.tiers.items():
        if tier.tensor_parallel == 1:
            continue
        key = f"{settings.key_of(name)}.tensor_parallel"
        wrong = ""
        if single_process:
            wrong = "a mesh in a single process has no others: leave --single-process away"
        elif isinstance(tier, TierSettings) and (tier.lends_kv or tier.adopts_from):
            wrong = "KV that is in parts can neither be lent nor adopted: unset lends_kv and adopts_from"
        elif find_spec("accelerate") is None:
            wrong = "transformers cuts models only with accelerate at hand: pip install accelerate"
        if wrong:
            raise StartupError(f"{key} is {tier.tensor_parallel}, but {wrong}", field=key)

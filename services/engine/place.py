"""Which of the processes of a model this is."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """A process among those that run one model together."""

    rank: int
    """0 is the first one, which leads."""
    size: int
    directory: Path | None = None
    """Where they meet: a directory that nobody else can enter. None where the environment says it, as torchrun's does
    (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)."""

"""What the published pairs take of GPUs, by the very code that shares memory out when a mesh starts.

Each file of `configs` is read as it is, with models in place of its paths of which only the sizes are on disk. GPUs
are given as torch reports them, less than the number in their name.
"""

import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from allroads.config import MeshSettings, load_settings
from allroads.errors import StartupError
from allroads.gpus import GpuFacts
from allroads.memory import resolve_memory

from ..report import show
from .headers import write_hole, write_sizes
from .shapes import PAIRS, ROUTER, SHAPES

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
GPUS_GIB = {"80 GB": 79, "141 GB": 139}
"""Memory of a GPU by what it is called: H100 or A100 with 80 GB, H200."""
_ROUTER_FILE = "router.pt"


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A pair's needs, in bytes, and the KV tokens that both models have in common on some GPUs."""

    config: str
    slm_weights: int
    llm_weights: int
    router: int
    """Float32, with its copy of the small model's embedding."""
    slm_kv: int
    """Of a token."""
    llm_kv: int
    kv_tokens: dict[str, int | None]
    """By GPUs; None where the pair does not fit."""


def memory_rows() -> list[MemoryRow]:
    """All pairs with a published router."""
    with tempfile.TemporaryDirectory() as directory:
        return [_row(name, Path(directory) / name) for name in PAIRS]


def show_memory() -> None:
    """Print the table."""
    rows = memory_rows()
    columns = ("configs/", "slm GB", "llm GB", "router GB", "KV slm", "KV llm", *rows[0].kv_tokens)
    cells = [
        (
            row.config,
            *(f"{size / 1e9:.1f}" for size in (row.slm_weights, row.llm_weights, row.router)),
            *(f"{size // 1024} KiB" for size in (row.slm_kv, row.llm_kv)),
            *("does not fit" if tokens is None else f"{tokens:,}" for tokens in row.kv_tokens.values()),
        )
        for row in rows
    ]
    show("weights, KV of a token, and tokens of KV that both models have", columns, cells, width=160)


def sized_settings(config: Path, directory: Path, **options: object) -> MeshSettings:
    """A configuration of `configs` with paths to models of the right sizes, written below `directory`.

    `options` are values of the large model's settings that win over the file's.
    """
    for model in ("slm", "llm"):
        name = getattr(load_settings(config), model).path.name
        write_sizes(directory / model, SHAPES[name])
    slm = SHAPES[load_settings(config).slm.path.name]
    # Its size is all that is asked of it; it has no embedding of its own.
    write_hole(directory / _ROUTER_FILE, {"all": (ROUTER.num_parameters(slm),)}, "F32")
    return load_settings(
        config,
        options={
            "slm": {"path": directory / "slm"},
            "llm": {"path": directory / "llm", **options},
            "router": {"path": directory / _ROUTER_FILE},
        },
    )


def kv_tokens(settings: MeshSettings, gpu_bytes: int) -> int | None:
    """KV tokens that both models have on GPUs with so much memory each; None where they do not fit."""

    def ask(ordinals: Collection[int]) -> Mapping[int, GpuFacts]:
        return {
            ordinal: GpuFacts(ordinal, "assumed", f"assumed-{ordinal}", (9, 0), gpu_bytes, gpu_bytes)
            for ordinal in ordinals
        }

    try:
        resolved = resolve_memory(settings, ask, before_start=True)
    except StartupError:
        return None
    return min(resolved.slm.allotted_kv_tokens, resolved.llm.allotted_kv_tokens)


def _row(name: str, directory: Path) -> MemoryRow:
    config = CONFIGS / f"{name}.yaml"
    one = sized_settings(config, directory / "one")
    two = sized_settings(config, directory / "two", tensor_parallel=2)
    tokens = {f"one of {gpu}": kv_tokens(one, gib << 30) for gpu, gib in GPUS_GIB.items()}
    tokens |= {f"two of {gpu}": kv_tokens(two, gib << 30) for gpu, gib in GPUS_GIB.items()}
    slm, llm = (SHAPES[model] for model in PAIRS[name])
    return MemoryRow(
        config=config.name,
        slm_weights=slm.weight_bytes,
        llm_weights=llm.weight_bytes,
        router=ROUTER.weight_bytes(slm),
        slm_kv=slm.kv_bytes_per_token,
        llm_kv=llm.kv_bytes_per_token,
        kv_tokens=tokens,
    )

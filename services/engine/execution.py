"""What every process that runs a model has: the model, its KV and what runs steps. One of them, or each of several."""

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from ..config import ModelSettings
from ..cuda.graphs import Recorder
from ..errors import StartupError
from ..model_size import token_kv
from .attention import AttentionBackend, KvShape
from .device import pick_device
from .kv_blocks import Allocate, zeros
from .leading import LeaderBackend, LeaderRunner
from .loading import DTYPES, load_model
from .runner import Runner
from .sampling import DrawTokens, recorded_draw
from .self_check import pick_forward
from .tensor_parallel import Leader, Member, device_of, require_plan, split


@dataclass(frozen=True, slots=True)
class Execution:
    """Runs steps over KV."""

    backend: AttentionBackend
    runner: Runner
    draws: DrawTokens
    recorder: Recorder | None
    """Of the device."""
    num_blocks: int
    """Of the KV pool."""
    max_context: int


def load_execution(
    settings: ModelSettings,
    config: PretrainedConfig,
    num_tokens: int,
    member: Member | None = None,
    *,
    allocate: Allocate = zeros,
) -> Execution:
    """Load a model, or this process's part of it.

    Args:
        settings: of the model.
        config: of the model, from its directory.
        num_tokens: ids that the tokenizer knows.
        member: this process among those of the model; None where it is the only one.
        allocate: gives the memory for the KV pool.

    Raises:
        StartupError: files are missing, damaged, or do not fit each other or the settings.
        Internal: another of its processes ended meanwhile.
    """
    size = 1 if member is None else member.size
    if settings.tensor_parallel != size:
        raise StartupError(
            f"tensor_parallel is {settings.tensor_parallel}, but this is one process of {size}: such a service needs "
            "processes of its own, which `allroads up` and `allroads serve` start",
            field="tensor_parallel",
        )
    torch.set_num_threads(settings.num_threads)
    kv = token_kv(config.to_dict(), settings.path)
    block_size = settings.block_size_tokens
    whole = KvShape(
        num_layers=kv.num_layers,
        num_kv_heads=kv.num_kv_heads,
        head_dim=kv.head_dim,
        num_blocks=settings.allotted_kv_tokens // block_size,
        block_size=block_size,
        num_heads=config.num_attention_heads,
    )
    shape = split(whole, size)
    if member is not None:
        require_plan(config)
        settings = settings.model_copy(update={"device": device_of(settings, member.rank)})
    device = pick_device(settings)
    on_device = size if device.torch_device.type == "cpu" else 1
    kv_bytes = kv.num_bytes(settings.dtype) * shape.num_kv_heads // whole.num_kv_heads * on_device
    _require_memory(kv_bytes * whole.num_blocks * block_size, device.memory_bytes())
    if isinstance(member, Leader):
        member.begin(settings.allotted_kv_tokens)
    model = load_model(settings.path, dtype=settings.dtype, device=settings.device, tensor_parallel=size)
    if member is not None:
        # Their first common work comes next, in which nobody waits as long as for weights.
        member.meet()
    max_context = min(config.max_position_embeddings, shape.num_blocks * block_size)
    backend = device.attention(
        shape,
        num_slots=settings.max_running,
        max_blocks=-(-max_context // block_size),
        dtype=DTYPES[settings.dtype],
        allocate=allocate,
    )
    runner = device.runner(pick_forward(model, device, shape, max_context), backend, num_tokens)
    if isinstance(member, Leader):
        member.link.start()
        backend, runner = LeaderBackend(backend, member.link), LeaderRunner(runner, member.link)
    draws = recorded_draw(config.vocab_size, device.torch_device, device.recorder, settings.max_running)
    return Execution(backend, runner, draws, device.recorder, shape.num_blocks, max_context)


def _require_memory(num_bytes: int, memory_bytes: int) -> None:
    """Refuse a KV pool that the device could never hold; the system would end the service when it fills."""
    if num_bytes > memory_bytes:
        raise StartupError(
            f"the KV pool needs {num_bytes} bytes and the device has {memory_bytes}; lower num_kv_tokens, or "
            'set it to "auto" and memory_bytes for the device',
            field="num_kv_tokens",
        )

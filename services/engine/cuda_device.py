"""A CUDA device, as an engine sees it."""

import logging
from functools import cached_property
from typing import TypeGuard

import torch

from ..config import ModelSettings
from ..cuda.graphs import CudaRecorder, Recorder
from ..cuda.runtime import gpu_facts, multiply_exactly
from ..cuda.sharing import detect_mps
from ..errors import StartupError
from ..gpus import GpuFacts
from ..placement import part_size
from ..step_memory import model_step_bytes
from .attention import AttentionBackend, FixedPlanBackend, KvShape
from .buckets import Buckets
from .cuda_attention import pick_attention
from .graph_runner import GraphRunner
from .kv_blocks import Allocate, zeros
from .runner import Forward, ModelRunner, Runner

logger = logging.getLogger(__name__)

_GIB = 1 << 30


class CudaDevice:
    """One GPU.

    A service looks whether its part of the memory is free before it loads, and is not held to it afterwards:
    `torch.cuda.set_per_process_memory_fraction` counts what torch's allocator holds and nothing else, is one limit for
    all services of a process, and would end a service that needs a little more than was reckoned while memory lies
    free. What KV takes is fixed once it is loaded, and steps grow within the part that `memory_share` leaves over.
    """

    def __init__(self, torch_device: torch.device, settings: ModelSettings) -> None:
        """Start CUDA there.

        Raises:
            StartupError: this device cannot be used, cannot compute in the settings' dtype, or lacks free memory; the
                message says what to do.
            CheckpointError: files of the model are missing or damaged.
        """
        self._facts = gpu_facts(torch_device.index or 0)
        self._facts.require_dtype(settings.dtype)
        require_free_memory(self._facts, settings)
        multiply_exactly(batch_invariant=settings.batch_invariant)
        self.torch_device = torch.device("cuda", self._facts.ordinal)
        self._settings = settings
        self._ways: list[str] = []

    @cached_property
    def recorder(self) -> Recorder | None:
        """See `Device.recorder`."""
        settings = self._settings
        is_recorded = settings.graphs == "auto" and settings.tensor_parallel == 1
        return CudaRecorder(self.torch_device, settings.stream_priority) if is_recorded else None

    def memory_bytes(self) -> int:
        """See `Device.memory_bytes`."""
        return self._facts.total_bytes

    def attention(
        self, shape: KvShape, *, num_slots: int, max_blocks: int, dtype: torch.dtype, allocate: Allocate = zeros
    ) -> AttentionBackend:
        """See `Device.attention`."""
        with torch.cuda.device(self.torch_device):
            backend, reason = pick_attention(
                self._settings,
                shape,
                num_slots=num_slots,
                max_blocks=max_blocks,
                dtype=dtype,
                device=self.torch_device,
                allocate=allocate,
            )
        # The first backend is the engine's, others are for checks.
        self._ways = self._ways or [f"attention by {reason}", how_steps_run(self._settings, backend)]
        return backend

    def runner(self, forward: Forward, backend: AttentionBackend, num_tokens: int) -> Runner:
        """See `Device.runner`. Records graphs where they are wanted and the attention can be recorded."""
        settings = self._settings
        direct = ModelRunner(forward, backend, num_tokens, self.torch_device)
        if why_direct(settings, backend) or not can_be_recorded(backend) or self.recorder is None:
            return direct
        return GraphRunner(
            forward,
            backend,
            direct,
            Buckets.up_to(settings.max_running, _max_graph_tokens(settings)),
            self.recorder,
            num_tokens=num_tokens,
            device=self.torch_device,
        )

    def describe(self) -> str:
        """See `Device.describe`."""
        facts = self._facts
        major, minor = facts.capability
        mps = detect_mps()
        return (
            f"{self.torch_device} ({facts.name}, capability {major}.{minor}, {facts.free_bytes / _GIB:.1f} of "
            f"{facts.total_bytes / _GIB:.1f} GiB free before the model): {', '.join(self._ways)}; "
            f"MPS {'runs' if mps.is_running else 'does not run'}: {mps.reason}"
        )


def why_direct(settings: ModelSettings, backend: AttentionBackend) -> str:
    """Why steps are not recorded as graphs; empty where they are.

    A model that is cut records none: where one of its processes fails to record a shape and another does not, the two
    would wait in different collective operations for ever.
    """
    if settings.graphs == "off":
        return "graphs are off"
    if settings.tensor_parallel > 1:
        return "its processes could not fail together to record one"
    return "" if can_be_recorded(backend) else "that attention cannot be recorded"


def how_steps_run(settings: ModelSettings, backend: AttentionBackend) -> str:
    """The same in words for the log."""
    if reason := why_direct(settings, backend):
        return f"steps run directly, as {reason}"
    return f"steps of up to {_max_graph_tokens(settings)} tokens run as graphs"


def can_be_recorded(backend: AttentionBackend) -> TypeGuard[FixedPlanBackend]:
    """Whether a backend has plans that stay in place."""
    return hasattr(backend, "fixed_plan")


def require_free_memory(facts: GpuFacts, settings: ModelSettings) -> None:
    """Look whether a GPU has room for its part of a model, before minutes go into loading it.

    What steps need besides is reckoned and no measure, so a service that may lack that is only warned of.

    Raises:
        StartupError: weights and KV do not fit into what is free; the message has the numbers.
        CheckpointError: files of the model are missing or damaged.
    """
    weight_bytes, kv_bytes_per_token = part_size(settings)
    num_tokens = settings.allotted_kv_tokens
    kv_bytes = (num_tokens - num_tokens % settings.block_size_tokens) * kv_bytes_per_token
    step_bytes = model_step_bytes(settings)
    told = (
        f"of the {facts.total_bytes} bytes of cuda:{facts.ordinal} ({facts.name}) {facts.free_bytes} are free; the "
        f"model in {settings.path} takes {weight_bytes} for weights and {kv_bytes} for KV of {num_tokens} tokens, and "
        f"its steps about {step_bytes}"
    )
    if weight_bytes + kv_bytes > facts.free_bytes:
        raise StartupError(
            f"{told}: end what else is there (nvidia-smi lists it), or lower num_kv_tokens, or memory_share where that "
            'is "auto"',
            field="num_kv_tokens",
        )
    if weight_bytes + kv_bytes + step_bytes > facts.free_bytes:
        logger.warning("memory may run short: %s; lower num_kv_tokens or max_step_tokens", told)


def _max_graph_tokens(settings: ModelSettings) -> int:
    return min(settings.max_graph_tokens, settings.max_step_tokens)

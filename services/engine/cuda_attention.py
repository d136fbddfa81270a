"""Which attention a model on a GPU uses: flashinfer's where it can, else torch's."""

import torch

from ..config import ModelSettings
from ..cuda.flashinfer_kernels import PREFILL_BACKEND, KernelShape
from ..cuda.flashinfer_use import flashinfer_version, why_not_flashinfer
from ..errors import StartupError
from .attention import AttentionBackend, KvShape
from .flashinfer_attention import FlashInferBackend
from .kv_blocks import Allocate, zeros
from .sdpa_attention import SdpaBackend


def pick_attention(
    settings: ModelSettings,
    shape: KvShape,
    *,
    num_slots: int,
    max_blocks: int,
    dtype: torch.dtype,
    device: torch.device,
    allocate: Allocate = zeros,
) -> tuple[AttentionBackend, str]:
    """KV memory and the attention over it, and which and why in words that go on after "attention by".

    Args:
        settings: of the model.
        shape: of the KV pool.
        num_slots: sequences that hold KV at once.
        max_blocks: blocks that one of them can have.
        dtype: of keys and values.
        device: of all tensors.
        allocate: gives the memory of the KV.

    Raises:
        StartupError: the settings want flashinfer, and it cannot be used.
    """
    reason = "as the settings say"
    if settings.attention != "sdpa":
        kernels = KernelShape(dtype, shape.head_dim, shape.num_heads // shape.num_kv_heads, settings.batch_invariant)
        reason = why_not_flashinfer(kernels, device)
        if not reason:
            flashinfer = FlashInferBackend(
                shape,
                num_slots=num_slots,
                max_blocks=max_blocks,
                dtype=dtype,
                device=device,
                batch_invariant=settings.batch_invariant,
                allocate=allocate,
            )
            kind = f"{PREFILL_BACKEND}, batch-invariant" if settings.batch_invariant else PREFILL_BACKEND
            return flashinfer, f"flashinfer {flashinfer_version()} ({kind})"
        if settings.attention == "flashinfer":
            raise StartupError(
                f'attention is "flashinfer", which cannot be used since {reason}; mend that, or set it to "auto"',
                field="attention",
            )
    sdpa = SdpaBackend(shape, num_slots=num_slots, max_blocks=max_blocks, dtype=dtype, device=device, allocate=allocate)
    return sdpa, f"sdpa, {reason if settings.attention == 'sdpa' else f'since {reason}'}"

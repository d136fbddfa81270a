"""Whether CUDA can be used here, what its devices are, and how exactly they multiply."""

import torch

from ..errors import StartupError
from ..gpus import GpuFacts

_HOW_TO_INSTALL = (
    "install the build of torch for your driver's CUDA version, as torch's install notes say (docs/gpu.md), "
    "or set device to cpu"
)


def why_unusable() -> str:
    """Why no GPU can be used by this process, and what to do about it; empty where one can."""
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA: {_HOW_TO_INSTALL}"
    if torch.cuda.is_available():
        return ""
    try:
        torch.cuda.init()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
    else:
        reason = "torch sees no GPU"
    return (
        f"CUDA cannot be used: {reason}; see if nvidia-smi lists a GPU here, if CUDA_VISIBLE_DEVICES hides it, and, "
        "in a container, if it was started with GPUs (docs/gpu.md); or set device to cpu"
    )


def gpu_facts(ordinal: int) -> GpuFacts:
    """What a GPU is and has. Starts CUDA on it, which takes some of its memory for as long as the process lives.

    Raises:
        StartupError: CUDA cannot be used, or there is no such GPU; the message says what to do.
    """
    if reason := why_unusable():
        raise StartupError(reason, field="device")
    count = torch.cuda.device_count()
    if ordinal >= count:
        raise StartupError(
            f"there is no cuda:{ordinal}: this process sees {count} GPU(s), of which the last is cuda:{count - 1}; "
            "choose one of them, or let more be seen with CUDA_VISIBLE_DEVICES",
            field="device",
        )
    try:
        free_bytes, _ = torch.cuda.mem_get_info(ordinal)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise StartupError(
            f"cuda:{ordinal} does not start: {reason}; see with nvidia-smi who has its memory, and if its compute "
            "mode lets one process in only",
            field="device",
        ) from error
    properties = torch.cuda.get_device_properties(ordinal)
    return GpuFacts(
        ordinal=ordinal,
        name=properties.name,
        uuid=str(properties.uuid),
        capability=(properties.major, properties.minor),
        total_bytes=properties.total_memory,
        free_bytes=free_bytes,
    )


def usable_device(name: str, field: str) -> torch.device:
    """The device that a setting names: the CPU, or a GPU that can be used, on which products are exact from now on.

    Raises:
        StartupError: there is no such device, or it cannot be used; `field` is the setting.
    """
    try:
        device = torch.device(name)
        if device.type == "cpu":
            return device
        if device.type != "cuda":
            raise StartupError(f"device {name!r} is not supported, only cpu and cuda are", field=field)
        facts = gpu_facts(device.index or 0)
    except RuntimeError as error:
        raise StartupError(f"device {name!r} is none that torch knows: {error}", field=field) from error
    except StartupError as error:
        raise StartupError(f"{field}: {error.message}", field=field) from error
    multiply_exactly()
    return torch.device("cuda", facts.ordinal)


def device_uuid(device: torch.device) -> str:
    """By which two processes know that they mean the same GPU; empty for a device that is none.

    Raises:
        RuntimeError: from torch, where CUDA cannot be used.
    """
    if device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def multiply_exactly(*, batch_invariant: bool = False) -> None:
    """Let this process's matrix products lose no more than their dtype does. For all models in the process.

    float32 stays float32: the 10 bits of TF32's mantissa would move a router's score across a threshold. That is
    torch's default, but one that a library may change.

    `batch_invariant`: sums of bfloat16 and float16 products are kept in float32 throughout, and none is cut into
    parts whose number depends on how many rows there are (split-k). Only cuBLASLt can be told not to cut, and only by
    torch 2.10 and later; an earlier one keeps the sums exact and may still cut. It is never turned off again, as
    another model of this process may have asked for it.
    """
    torch.set_float32_matmul_precision("highest")
    if not batch_invariant:
        return
    products = torch.backends.cuda.matmul
    try:
        products.allow_bf16_reduced_precision_reduction = (False, False)
        products.allow_fp16_reduced_precision_reduction = (False, False)
    except (TypeError, RuntimeError):  # torch before 2.10 takes one word
        products.allow_bf16_reduced_precision_reduction = False
        products.allow_fp16_reduced_precision_reduction = False
    else:
        torch.backends.cuda.preferred_blas_library("cublaslt")

"""Whether flashinfer can attend for a model on a GPU, and if not, why."""

import importlib.metadata
import logging
import re
from importlib.util import find_spec

import torch

from ..errors import StartupError
from .flashinfer_kernels import KernelShape, compile_kernel, kernels_of

logger = logging.getLogger(__name__)

INSTALL = "pip install 'allroads[gpu]'"
_FIRST, _BEYOND = (0, 5, 3), (0, 7, 0)
_DTYPES = (torch.float16, torch.bfloat16)
_HEAD_DIMS = (64, 128, 256)
_LEAST_CAPABILITY = (8, 0)


def why_not_flashinfer(shape: KernelShape, device: torch.device) -> str:
    """Why flashinfer cannot be used, in words that go on after "since"; empty where it can.

    Where it can, its kernels are compiled when this returns, which takes minutes unless they were before.
    """
    return (
        why_not_installed()
        or why_not_fit(shape)
        or why_not_device(device)
        or _why_not_imported()
        or _why_not_compiled(shape)
    )


def flashinfer_version() -> str:
    """As it is installed; empty where it is not."""
    try:
        return importlib.metadata.version("flashinfer-python") if find_spec("flashinfer") else ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def why_not_installed() -> str:
    """Whether a version that we know is there. It is not imported."""
    version = flashinfer_version()
    if not version:
        return f"flashinfer is not installed ({INSTALL})"
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if not _FIRST <= numbers < _BEYOND:
        return f"flashinfer {version} is none of 0.5.3 to 0.6 ({INSTALL})"
    return ""


def why_not_fit(shape: KernelShape) -> str:
    """Whether it has kernels for such a model."""
    if shape.dtype not in _DTYPES:
        return f"it does not compute in {str(shape.dtype).removeprefix('torch.')}, only in bfloat16 and float16"
    if shape.head_dim not in _HEAD_DIMS:
        return f"it does not take heads of {shape.head_dim}, only of {', '.join(map(str, _HEAD_DIMS))}"
    return ""


def why_not_device(device: torch.device) -> str:
    """Whether it has kernels for such a device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"{device} is no NVIDIA GPU"
    if torch.version.cuda is None:
        return "this torch was not built for CUDA"
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}, not 8.0"
    return ""


def _why_not_imported() -> str:
    try:
        import flashinfer  # noqa: F401, PLC0415 (it takes seconds, and only a GPU has use for it)
    except (ImportError, OSError, RuntimeError) as error:
        return f"flashinfer cannot be imported: {error}"
    return ""


def _why_not_compiled(shape: KernelShape) -> str:
    try:
        for kernel in kernels_of(shape):
            if not kernel.is_compiled:
                logger.info("compiling %s takes minutes, once; `allroads kernels` does it ahead", kernel.name)
            compile_kernel(kernel)
    except StartupError as error:
        return error.message
    except RuntimeError as error:
        return f"flashinfer has no kernels here: {error}"
    return ""

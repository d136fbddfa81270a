"""Which kernels of flashinfer a model needs, and how they are compiled: by nvcc and ninja, for minutes each.

flashinfer compiles a kernel when it is first used and keeps it in a cache of its own. Everything here can be done
before, and where there is no GPU.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from ..config import Dtype
from ..errors import StartupError

PREFILL_BACKEND = "fa2"
"""Of flashinfer's kernels those that part a long text among all multiprocessors, which short extends need, that can be
told not to, and that are the same ones from compute capability 8.0 on. "auto" would take others on a Hopper GPU."""

_CORES_GROUPS = frozenset({1, 2, 3})
"""Query heads per KV head for which decoding by plain cores pays; from four on tensor cores do."""
_ARCH_LIST = "FLASHINFER_CUDA_ARCH_LIST"
_USUAL_HOME = Path("/usr/local/cuda")
_NUM_ERROR_LINES = 4
_STUB_HINT = (
    ". Where there is no driver the toolkit's stub of it is linked: install that (cuda-driver-dev), or let "
    "LIBRARY_PATH name the directory of a libcuda.so"
)
_TOOLKIT_PARTS = ("bin/nvcc", "include/cuda_runtime.h")


class Kernel(Protocol):
    """One module of kernels, as flashinfer describes it."""

    @property
    def name(self) -> str:
        """Says all that it is made for."""
        ...

    @property
    def is_compiled(self) -> bool:
        """Whether it is in flashinfer's cache, or came with it."""
        ...

    @property
    def is_aot(self) -> bool:
        """Whether it came with it, and is loaded as it is."""
        ...

    def build(self, verbose: bool) -> None:
        """Compile it, or see that it is compiled."""
        ...


@dataclass(frozen=True, slots=True)
class KernelShape:
    """What kernels are made for: everything else is a number that they are given."""

    dtype: torch.dtype
    """Of queries, keys, values and what comes out."""
    head_dim: int
    group: int
    """Query heads per KV head."""
    batch_invariant: bool = False

    @classmethod
    def named(cls, dtype: Dtype, head_dim: int, group: int, *, batch_invariant: bool) -> "KernelShape":
        """The same by the dtype's name."""
        return cls(getattr(torch, dtype), head_dim, group, batch_invariant)

    @property
    def decodes_on_cores(self) -> bool:
        """Whether single tokens have kernels of their own, beside those that extends use."""
        return self.group in _CORES_GROUPS and not self.batch_invariant


def kernels_of(shape: KernelShape) -> list[Kernel]:
    """The modules that a model uses. Needs flashinfer, and a GPU or `target_arch`, for their names depend on both."""
    from flashinfer.jit.attention import gen_batch_decode_module, gen_batch_prefill_module  # noqa: PLC0415 (optional)

    dtype, head_dim = shape.dtype, shape.head_dim
    kind = (dtype, dtype, dtype, torch.int32, head_dim, head_dim, 0, False, False)
    kernels: list[Kernel] = [gen_batch_prefill_module(PREFILL_BACKEND, *kind, False)]
    if shape.decodes_on_cores:
        kernels.append(gen_batch_decode_module(*kind))
    return kernels


def target_arch(arch: str | None) -> None:
    """From now on compile for this architecture, such as `9.0a`. To be called before flashinfer is first imported.

    None is to compile for what the environment names, or for the GPUs that are here.

    Raises:
        StartupError: it is none, or too old; or nothing names one.
    """
    if arch is None:
        if _ARCH_LIST not in os.environ and not torch.cuda.is_available():
            raise StartupError("there is no GPU here to compile for; give --arch, such as 9.0a", field="arch")
        return
    major, _, minor = arch.partition(".")
    if not (major.isdigit() and minor[:1].isdigit() and minor.isalnum()):
        raise StartupError(f"--arch must be a compute capability such as 8.0 or 9.0a, not {arch!r}", field="arch")
    if int(major) < 8:
        raise StartupError(f"--arch {arch} is too old: attention by flashinfer needs 8.0 or newer", field="arch")
    os.environ[_ARCH_LIST] = arch


def missing_tools() -> str:
    """Which programs that compile kernels are not there, in words; empty where all are."""
    missing = [] if shutil.which("ninja") else ["ninja (pip install ninja)"]
    if _toolkit() is None:
        missing.append("nvcc (of CUDA's toolkit; CUDA_HOME says where that is)")
    return " and ".join(missing)


def compile_kernel(kernel: Kernel) -> None:
    """Compile a module, for minutes; at once where that was done before or it came with flashinfer.

    What was compiled before needs no nvcc, as long as CUDA's toolkit would be in the same place: the place is part of
    what ninja compares.

    Raises:
        StartupError: a program is missing, or the compiler failed.
    """
    if kernel.is_aot:
        return
    if not kernel.is_compiled and (missing := missing_tools()):
        raise StartupError(f"flashinfer's kernels cannot be compiled without {missing}", field="attention")
    if "CUDA_PATH" not in os.environ:
        os.environ.setdefault("CUDA_HOME", str(_toolkit() or _USUAL_HOME))
    try:
        kernel.build(False)
    except (RuntimeError, OSError) as error:
        words = str(error).strip().splitlines()[-_NUM_ERROR_LINES:]
        hint = _STUB_HINT if any("-lcuda" in line for line in words) else ""
        raise StartupError(
            f"flashinfer's {kernel.name} was not compiled: {'; '.join(words)}{hint}", field="attention"
        ) from error


def _toolkit() -> Path | None:
    """The directory of a whole CUDA toolkit: nvcc alone on the PATH may be a script that leads to one elsewhere."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = shutil.which("nvcc")
    homes = [Path(named)] if named else [*([Path(found).parents[1]] if found else []), _USUAL_HOME]
    return next((home for home in homes if all((home / part).exists() for part in _TOOLKIT_PARTS)), None)

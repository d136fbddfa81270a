"""A GPU that computes nothing: tensors on it have shapes, dtypes and a device, and read as zeros.

It finds what a CPU cannot: operations over tensors of two devices, and places where the host waits. It needs torch
built with CUDA, and neither a driver nor a GPU.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import allroads.cuda.upload as upload_module
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("cuda:0")
_SERVICES = Path(upload_module.__file__).parents[1]
_READS = ("aten::nonzero", "aten::_local_scalar_dense", "aten::masked_select", "aten::equal", "aten::is_nonzero")


@dataclass
class ImaginaryGpu(TorchDispatchMode):
    """While it is entered, what is made on `cuda` is imaginary. Real tensors of the host stay what they are."""

    waits: list[str] = field(default_factory=list)
    """Where the host waited for the device, by file and line of ours, oldest first."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in _flat((args, kwargs)) if isinstance(one, Tensor)]
        imaginary = [one for one in tensors if isinstance(one, FakeTensor)]
        target = kwargs.get("device") or next((one for one in args if isinstance(one, torch.device)), None)
        if not imaginary and (target is None or torch.device(target).type != "cuda"):
            return func(*args, **kwargs)
        if func.namespace == "aten" and func.has_kernel_for_dispatch_key(
            torch._C.DispatchKey.CompositeImplicitAutograd
        ):
            # Inference mode does not take them apart.
            with self:
                return func.decompose(*args, **kwargs)
        self._look(func.name(), args, kwargs, tensors, bool(imaginary))
        if func.name() == "aten::_local_scalar_dense":
            return 0
        with self.fake:
            if func.name() == "aten::_to_copy" and not imaginary:
                # Else the mode would copy what it knows the values of.
                return torch.empty(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device=target)
            out = func(*args, **kwargs)
        if isinstance(out, FakeTensor) and out.device.type == "cpu":
            return torch.zeros(out.shape, dtype=out.dtype)
        return out

    def _look(self, name: str, args: Any, kwargs: Any, tensors: list[Tensor], is_there: bool) -> None:
        devices = {one.device.type for one in tensors if one.ndim}
        copies_over = name == "aten::_to_copy" and is_there == (torch.device(kwargs.get("device", GPU)).type == "cpu")
        waits = is_there and name.startswith(_READS)
        waits |= copies_over and not kwargs.get("non_blocking")
        waits |= name == "aten::copy_" and len(devices) > 1 and not (args[2:] and args[2]) and not kwargs
        waits |= name.startswith("aten::index") and len(devices) > 1
        if waits:
            self.waits.append(f"{name} at {_place()}")


def _flat(part: Any) -> Iterator[Any]:
    if isinstance(part, dict):
        part = part.values()
    elif not isinstance(part, list | tuple):
        yield part
        return
    for one in part:
        yield from _flat(one)


def _place() -> str:
    """The innermost line of ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_SERVICES) or path.is_relative_to(_SERVICES.resolve()):
            return f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


class _WithoutPinning:
    """torch, but that nothing is page-locked: that takes a driver."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def tensor(values: Any, *, dtype: torch.dtype | None = None, pin_memory: bool = False, **where: Any) -> Tensor:
        return torch.tensor(values, dtype=dtype, **where)


@contextmanager
def imaginary_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImaginaryGpu]:
    """Enter one."""
    monkeypatch.setattr(upload_module, "torch", _WithoutPinning())
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(FakeTensor, "tolist", _tolist)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    with torch.inference_mode(), ImaginaryGpu() as gpu:
        yield gpu


def _tolist(tensor: Tensor) -> Any:
    return tensor.cpu().tolist()


def move(module: torch.nn.Module) -> torch.nn.Module:
    """A module of the host onto it."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        moved: torch.nn.Module = module._apply(lambda tensor: torch.empty_like(tensor, device=GPU))
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    return moved

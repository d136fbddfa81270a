"""Calls of the CUDA driver by way of cuda-bindings, each checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from ..errors import Unavailable


def call(name: str, *arguments: Any) -> Any:
    """What a function of the driver gives besides its status: nothing, one value, or a tuple of values.

    Raises:
        Unavailable: the bindings or the driver are missing, or the call failed; names the call.
    """
    binding = _binding()
    function = getattr(binding, name, None)
    if function is None:
        raise Unavailable(f"{name} is not in this cuda-bindings; install cuda-bindings 12.8 or newer")
    try:
        status, *values = function(*arguments)
    except RuntimeError as error:
        # So the bindings tell that there is no driver, or none that has the function.
        raise Unavailable(f"{name}: the CUDA driver is missing or too old ({error})") from error
    if status != binding.CUresult.CUDA_SUCCESS:
        raise Unavailable(f"{name} failed: {getattr(status, 'name', status)}")
    return (values[0] if len(values) == 1 else tuple(values)) if values else None


def has_call(name: str) -> bool:
    """Whether these bindings know a function of that name."""
    return hasattr(_binding(), name)


def binding_type(name: str) -> Any:
    """A type or enumeration of the bindings.

    Raises:
        Unavailable: the bindings are missing.
    """
    return getattr(_binding(), name)


@contextmanager
def entered(context: Any) -> Iterator[None]:
    """Make a device's context the calling thread's for a while. Streams and memory belong to one.

    Raises:
        Unavailable: the context is gone.
    """
    call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


def _binding() -> ModuleType:
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise Unavailable(
            f"cuda-bindings cannot be imported ({error}); install allroads[gpu] to share GPU memory"
        ) from error

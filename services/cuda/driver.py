"""Calls of the CUDA driver by way of cuda-bindings, each checked."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from ..errors import Unavailable

_RELEASES_THE_LOCK = (12, 9, 1)
"""The first cuda-bindings whose calls let go of Python's lock, by their sources."""


def call(name: str, *arguments: Any) -> Any:
    """What a function of the driver gives besides its status: nothing, one value, or a tuple of values.

    Raises:
        Unavailable: the bindings or the driver are missing, or the call failed; names the call.
    """
    status, *values = _called(name, arguments)
    _require_success(name, status)
    return (values[0] if len(values) == 1 else tuple(values)) if values else None


def is_ready(name: str, *arguments: Any) -> bool:
    """What a function of the driver says that asks whether work is done; raises as `call` does."""
    status, *_ = _called(name, arguments)
    if status == _binding().CUresult.CUDA_ERROR_NOT_READY:
        return False
    _require_success(name, status)
    return True


def require_calls_that_hold_nobody_up() -> None:
    """See that other threads of Python run while the driver works: one may have to end what a call waits for.

    Raises:
        Unavailable: these bindings are too old for that, or missing.
    """
    _binding()
    version = str(import_module("cuda.bindings").__version__)
    if _numbers(version) < _RELEASES_THE_LOCK:
        wanted = ".".join(map(str, _RELEASES_THE_LOCK))
        raise Unavailable(f"cuda-bindings {version} hold up all of Python while CUDA works; install {wanted} or newer")


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


def _called(name: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    function = getattr(_binding(), name, None)
    if function is None:
        raise Unavailable(f"{name} is not in this cuda-bindings; install cuda-bindings 12.8 or newer")
    try:
        result: tuple[Any, ...] = function(*arguments)
    except RuntimeError as error:
        # So the bindings tell that there is no driver, or none that has the function.
        raise Unavailable(f"{name}: the CUDA driver is missing or too old ({error})") from error
    return result


def _require_success(name: str, status: Any) -> None:
    if status != _binding().CUresult.CUDA_SUCCESS:
        raise Unavailable(f"{name} failed: {getattr(status, 'name', status)}")


def _numbers(version: str) -> tuple[int, ...]:
    """Of a version such as 12.9.1 or 13.0.0rc1."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _binding() -> ModuleType:
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise Unavailable(
            f"cuda-bindings cannot be imported ({error}); install allroads[gpu] to share GPU memory"
        ) from error

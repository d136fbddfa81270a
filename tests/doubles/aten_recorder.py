"""A recorder for the CPU that is as strict as CUDA graphs are: it repeats operations, on the very same memory.

What Python does between the operations is not repeated, so numbers that changed and did not go through a tensor that
stays give wrong results. What waits for a device, or brings numbers to it, cannot be recorded. What was made
while recording holds nothing until the first replay, and is spoilt by each replay of another recording, as it is where
graphs share their memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from allroads.cuda.graphs import Recording
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ResultT = TypeVar("ResultT")

WAITING = {
    "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "allclose", "unique_dim", "_unique2",
    "unique_consecutive", "bincount", "repeat_interleave",
}  # fmt: skip
"""ATen operations whose shape or value the host must know."""
UPLOADING = {"lift_fresh", "lift_fresh_copy", "lift"}
"""What becomes of `torch.tensor(numbers)`."""
_HOST_ONLY = {
    Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__, Tensor.__bool__, Tensor.__int__,
    Tensor.__float__, Tensor.__index__, torch.from_numpy, torch.frombuffer,
}  # fmt: skip
"""Of these ATen may see nothing on the CPU."""


class CannotRecord(RuntimeError):
    """As CUDA says of such work: "operation not permitted when stream is capturing"."""


@dataclass
class _Operation:
    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    made: list[Tensor]
    """New tensors that it gave, in memory of their own."""

    def repeat(self) -> None:
        if not self.made and not self.function._schema.is_mutable:
            return
        found = self.function(*self.args, **self.kwargs)
        for kept, fresh in zip(self.made, _tensors(found), strict=bool(self.made)):
            kept.copy_(fresh)


class AtenRecorder:
    """A `Recorder`."""

    def __init__(self) -> None:
        self.num_records = 0
        self.num_replays = 0
        self._recorded: list[list[_Operation]] = []

    @torch.inference_mode()
    def record(self, work: Callable[[], ResultT]) -> Recording[ResultT]:
        """Run it as warm-up does, and once more to note what it does."""
        work()
        operations: list[_Operation] = []
        with _NoHost(), _Noting(operations):
            result = work()
        self.num_records += 1
        self._recorded.append(operations)
        _spoil(operations)

        @torch.inference_mode()
        def replay() -> None:
            self.num_replays += 1
            for other in self._recorded:
                _spoil(other)
            for operation in operations:
                operation.repeat()

        return Recording(result, replay, work)

    def reserved_bytes(self) -> int:
        """Nothing that would be worth counting."""
        return 0


def _spoil(operations: list[_Operation]) -> None:
    for operation in operations:
        for made in operation.made:
            made.fill_(float("nan") if made.is_floating_point() else made.dtype is torch.bool or -7)


class _Noting(TorchDispatchMode):
    def __init__(self, operations: list[_Operation]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = operations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name in WAITING | UPLOADING or (name in {"index", "index_put", "index_put_"} and _has_mask(args[1])):
            raise CannotRecord(f"operation not permitted when stream is capturing: {func}\nand some advice")
        result = func(*args, **kwargs)
        given = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        fresh = [one for one in _tensors(result) if one.untyped_storage().data_ptr() not in given]
        if fresh and len(fresh) != len(list(_tensors(result))):
            raise CannotRecord(f"{func} gives both new tensors and views, which this double does not tell apart")
        self._operations.append(_Operation(func, args, kwargs, fresh))
        return result


class _NoHost(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _HOST_ONLY:
            raise CannotRecord(f"operation not permitted when stream is capturing: {func.__name__}")
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.numel())

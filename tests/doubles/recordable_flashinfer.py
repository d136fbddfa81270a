"""The dense wrappers as operations of torch, so that a recorder sees a run of theirs as one kernel."""

from typing import Any

import torch
from torch import Tensor

from . import dense_flashinfer

_wrappers: list[Any] = []


@torch.library.custom_op("allroads_tests::attend", mutates_args={"out"})
def _attend(query: Tensor, kv: Tensor, out: Tensor, number: int) -> None:
    # A kernel reads what it likes; what the host may read is a question of those who launch it.
    with torch._C.DisableTorchFunction():
        _wrappers[number].attend_now(query, kv, out)


class _Recordable:
    """Mixed into a wrapper."""

    def run(self, query: Tensor, kv: Tensor, *, out: Tensor) -> Tensor:
        if self not in _wrappers:
            _wrappers.append(self)
        _attend(query, kv, out, _wrappers.index(self))
        return out

    def attend_now(self, query: Tensor, kv: Tensor, out: Tensor) -> None:
        super().run(query, kv, out=out)  # type: ignore[misc]


class BatchDecodeWithPagedKVCacheWrapper(_Recordable, dense_flashinfer.BatchDecodeWithPagedKVCacheWrapper):  # type: ignore[misc]
    """As there."""


class BatchPrefillWithPagedKVCacheWrapper(_Recordable, dense_flashinfer.BatchPrefillWithPagedKVCacheWrapper):  # type: ignore[misc]
    """As there."""

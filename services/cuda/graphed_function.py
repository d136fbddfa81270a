"""A function of a batch that is recorded at a few sizes, and run at the next larger one that fits."""

import logging
from collections.abc import Callable
from itertools import takewhile

import torch
from torch import Tensor

from .graphs import Recorder, Recording, first_line
from .launch_counts import LaunchCounts

logger = logging.getLogger(__name__)

BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""Rows at which functions of a batch are recorded."""

BatchFunction = Callable[..., tuple[Tensor, ...]]
"""Takes tensors [n, ...] and gives tensors [n, ...], each row of which depends on its own row alone."""


class GraphedFunction:
    """Calls a function by its recordings. Belongs to one thread at a time, as its recorder does."""

    def __init__(
        self,
        name: str,
        function: BatchFunction,
        examples: tuple[Tensor, ...],
        recorder: Recorder | None,
        max_rows: int = BATCH_SIZES[-1],
    ) -> None:
        """Record the function at all of `BATCH_SIZES` up to the one that holds `max_rows`; where that fails, say why.

        Args:
            name: for the log.
            function: of as many tensors as there are examples.
            examples: a harmless row of each input, [1, ...], on the device. Rows that pad a batch are like it, or like
                rows of batches before.
            recorder: None calls the function as it is.
            max_rows: of the largest batch that is worth a recording.
        """
        self.counts = LaunchCounts()
        self._function = function
        self._examples = examples
        self._recordings: dict[int, Recording[tuple[Tensor, ...]]] = {}
        self._inputs: tuple[Tensor, ...] = ()
        if recorder is not None:
            self._record(name, recorder, _sizes_up_to(max_rows))

    @torch.inference_mode()
    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The function's results, which are the caller's own.

        Args:
            inputs: n rows each, on any device and of any type: they are brought to those of the examples. Where they
                are on the device nothing waits for it.
        """
        num_rows = len(inputs[0])
        size = next((size for size in self._recordings if size >= num_rows), 0)
        if not size or not num_rows:
            self.counts.num_eager["rows" if self._recordings else "not recorded"] += 1
            return self._function(
                *(
                    given.to(example.device, example.dtype, non_blocking=True)
                    for given, example in zip(inputs, self._examples, strict=True)
                )
            )
        for kept, given in zip(self._inputs, inputs, strict=True):
            kept[:num_rows].copy_(given, non_blocking=True)
        recording = self._recordings[size]
        recording.replay()
        self.counts.num_replayed += 1
        return tuple(part[:num_rows].clone() for part in recording.result)

    @torch.inference_mode()
    def _record(self, name: str, recorder: Recorder, sizes: list[int]) -> None:
        recordings: dict[int, Recording[tuple[Tensor, ...]]] = {}
        try:
            self._inputs = tuple(example.expand(sizes[-1], *example.shape[1:]).clone() for example in self._examples)
            for size in reversed(sizes):
                recordings[size] = recorder.record(self._work(size))
        except RuntimeError as error:
            self._inputs = ()
            logger.warning("%s cannot be recorded and runs directly: %s", name, first_line(error))
            return
        self._recordings = dict(sorted(recordings.items()))

    def _work(self, size: int) -> Callable[[], tuple[Tensor, ...]]:
        inputs = tuple(kept[:size] for kept in self._inputs)
        return lambda: self._function(*inputs)


def _sizes_up_to(max_rows: int) -> list[int]:
    """Those below, and the next one."""
    below = list(takewhile(lambda size: size < max_rows, BATCH_SIZES))
    return [*below, *BATCH_SIZES[len(below) : len(below) + 1]]

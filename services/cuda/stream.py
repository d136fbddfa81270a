"""A thread's own CUDA stream, so that services which share a GPU within one process do not wait for each other."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

from .capturing import CAPTURING

Priority = Literal["normal", "high"]
Surroundings = Callable[[], AbstractContextManager[None]]
"""What a thread works within, entered by the thread itself."""


def priority_number(priority: Priority, bounds: tuple[int, int]) -> int:
    """A priority as CUDA counts: smaller goes first. `bounds`: the device's least and greatest, such as (0, -5)."""
    least, greatest = bounds
    return greatest if priority == "high" else least


def own_stream(device: torch.device | str, priority: Priority) -> Surroundings:
    """Surroundings in which a thread's work on a GPU goes through a stream of its own; on the CPU none at all.

    Priority counts between streams of one process alone: CUDA lets processes take turns whatever they ask for.
    """
    place = torch.device(device)
    if place.type != "cuda":
        return nullcontext
    return lambda: _within_stream(place, priority)


@contextmanager
def _within_stream(device: torch.device, priority: Priority) -> Iterator[None]:
    with torch.cuda.device(device):
        # A model was loaded, checked and recorded by other threads, on their streams. Once all that is done, its
        # results may be read here; and what torch keeps of memory for those streams is given back, as a block that
        # was freed on one stream serves that stream alone.
        with CAPTURING:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        bounds = torch.cuda.Stream.priority_range()  # type: ignore[call-arg] # static, whatever its stub says
        stream = torch.cuda.Stream(priority=priority_number(priority, bounds))
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()

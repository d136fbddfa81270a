"""Another process that lends KV, as an engine sees it: what is asked, what is offered, and the memory behind it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class PeerPool(Protocol):
    """The KV memory of another process, open for reading."""

    @property
    def blocks_per_turn(self) -> int:
        """How many may be copied without holding up others: at least one."""
        ...

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Begin to copy blocks of the peer to blocks of the own pool, parallel lists.

        Raises:
            InvalidArgument: the peer's memory is not what it was told to be.
            Unavailable: it cannot be copied just now; says why.
        """
        ...

    def is_settled(self) -> bool:
        """Whether all copies are complete that were begun."""
        ...

    def close(self) -> None:
        """Let go of the memory, once nothing is copied any more. Harmless when repeated."""
        ...


@dataclass(frozen=True, slots=True)
class Offer:
    """What a lender has answered, checked: ids of blocks that its pool has, and no more of them than were missing."""

    generation: int
    loan_id: int
    blocks: tuple[int, ...]
    open_pool: Callable[[], PeerPool]
    """Raises AllroadsError where the pool is out of reach."""


class Lender(Protocol):
    """The other service. Neither call waits; each is answered by a call of `KvAdoption`, or never."""

    @property
    def name(self) -> str:
        """For log lines."""
        ...

    def ask(self, number: int, tokens: tuple[int, ...], num_known_blocks: int) -> None:
        """Ask for the KV of a beginning but for its first blocks. Answered by `offered`, `refused` or `failed`."""
        ...

    def release(self, number: int, generation: int, loan_id: int) -> None:
        """End a loan. Answered by `released` or `failed`."""
        ...

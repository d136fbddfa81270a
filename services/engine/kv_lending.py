"""KV that other processes copy from here: which blocks are lent, to the end of which loan.

A loan holds its blocks as a sequence would, so nobody writes to them. But it is only a promise: it ends by itself
after a time, and at once where a sequence must write one of its blocks again. Whoever copied asks at the end whether
the loan had lasted, and throws the copy away if it had not. So no reader, dead or slow, can hold anything up.
"""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from ..errors import ResourceExhausted
from .kv_blocks import KvKeeper

logger = logging.getLogger(__name__)

LOAN_LIMIT_S = 2.0
"""How long a loan lasts at most; an adoption takes a small part of it."""
MAX_LOANS = 64
"""Loans at once; one more is refused."""


@dataclass(frozen=True, slots=True)
class Loan:
    """What a borrower is told."""

    loan_id: int
    blocks: tuple[int, ...]
    """In the order of the sequence, after those that the borrower has."""


@dataclass(frozen=True, slots=True)
class _Lent:
    tokens: tuple[int, ...]
    """Those of the blocks and one more, by which they are found."""
    blocks: tuple[int, ...]
    """Held, from the sequence's start: also those that the borrower has, without which the others are not found."""
    until: float
    """Of the clock."""


class KvLending:
    """The loans of one engine. Belongs to its thread."""

    def __init__(
        self,
        keeper: KvKeeper,
        *,
        settle: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settle`: waits until the device has written all KV that this process has asked it to; `clock` in seconds."""
        self._keeper = keeper
        self._settle = settle
        self._clock = clock
        self._numbers = count(1)
        self._loans: dict[int, _Lent] = {}
        self.generation = secrets.randbits(63) + 1
        """Of this life of the pool, so that nobody takes it for the one before a restart."""
        self.num_lent_tokens = 0
        """Of all loans so far."""
        self.num_broken = 0
        """Loans that ended before they were given back."""

    @property
    def num_loans(self) -> int:
        """Loans that go on."""
        return len(self._loans)

    def lend(self, tokens: Sequence[int], num_known_blocks: int = 0) -> Loan | None:
        """Lend the known blocks of the beginning of `tokens`, but for the first so many, which the borrower has.

        Never the KV of the last token, which must be computed to see what comes after it. None where no more is
        known here than there.

        Raises:
            ResourceExhausted: too many loans go on.
        """
        self.expire()
        pool = self._keeper.pool
        blocks = pool.match(tokens)
        if len(blocks) <= num_known_blocks:
            return None
        if len(self._loans) >= MAX_LOANS:
            raise ResourceExhausted(f"{MAX_LOANS} loans of KV go on already", retry_after_s=LOAN_LIMIT_S)
        self._settle()
        pool.allocate(len(blocks), blocks)
        length = len(blocks) * pool.block_size
        loan_id = next(self._numbers)
        self._loans[loan_id] = _Lent(tuple(tokens[: length + 1]), tuple(blocks), self._clock() + LOAN_LIMIT_S)
        self.num_lent_tokens += length - num_known_blocks * pool.block_size
        return Loan(loan_id, tuple(blocks[num_known_blocks:]))

    def release(self, generation: int, loan_id: int) -> bool:
        """End a loan; whether it had lasted, and its blocks still hold what was lent. Harmless when repeated."""
        self.expire()
        lent = self._loans.pop(loan_id, None) if generation == self.generation else None
        if lent is None:
            return False
        # Content that turned out bad meanwhile is known no more.
        is_good = tuple(self._keeper.pool.match(lent.tokens)) == lent.blocks
        self._keeper.give_up(lent.blocks)
        return is_good

    def expire(self) -> None:
        """End the loans whose time is over."""
        if self._loans:
            now = self._clock()
            over = [loan_id for loan_id, lent in self._loans.items() if lent.until <= now]
            if over:
                logger.warning("%d loan(s) of KV were not given back within %g s: over", len(over), LOAN_LIMIT_S)
            self._break(over)

    def revoke(self, blocks: Sequence[int]) -> None:
        """End the loans of any of these blocks: who holds them otherwise wants to write there."""
        if self._loans:
            wanted = set(blocks)
            self._break([loan_id for loan_id, lent in self._loans.items() if not wanted.isdisjoint(lent.blocks)])

    def _break(self, loan_ids: list[int]) -> None:
        for loan_id in loan_ids:
            self._keeper.give_up(self._loans.pop(loan_id).blocks)
            self.num_broken += 1

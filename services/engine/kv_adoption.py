"""KV that is copied from another process of the same model, so that a sequence's beginning is not computed anew.

A sequence that is opened is held back while another service is asked what it has of the sequence's beginning. What it
lends is copied into blocks of this pool, a part in each turn, so that others do not wait. Once the lender has said
that the loan had lasted, the blocks are known here like those of any earlier sequence, and admission finds them.
Whatever goes wrong, and however long it takes, the sequence goes on without: it computes what it lacks.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from ..errors import AllroadsError
from .kv_blocks import KvKeeper
from .kv_peer import Lender, Offer, PeerPool
from .sequence import Sequence, State

logger = logging.getLogger(__name__)

LIMIT_S = 0.25
"""How long an adoption may hold a sequence back, all in all."""
_COPY_LIMIT_S = 0.8 * LIMIT_S
"""After this no more is copied, so that there is time to make good what was."""
MIN_TOKENS = 64
"""Fewer are computed sooner than asked for."""
MAX_ADOPTIONS = 16
"""Under way at once; further sequences compute."""
LINGER_S = 10.0
"""How long the lender's memory stays open unused. A process that is gone keeps it while it is open somewhere."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
"""After a failure nobody is asked for so long, and twice as long after the next."""


class _Stage(Enum):
    ASKED = "asked"
    COPYING = "copying"
    RELEASING = "releasing"


@dataclass(eq=False, slots=True)
class _Adoption:
    sequence: Sequence
    tokens: tuple[int, ...]
    since: float
    known: list[int]
    """Leading blocks that were here already, held."""
    stage: _Stage = _Stage.ASKED
    offer: Offer | None = None
    fresh: list[int] = field(default_factory=list)
    """Held: where the copies of the first of the offer's blocks go."""
    num_copied: int = 0


class KvAdoption:
    """The adoptions of one engine. Belongs to its thread."""

    def __init__(self, keeper: KvKeeper, lender: Lender, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: in seconds."""
        self._keeper = keeper
        self._lender = lender
        self._clock = clock
        self._numbers = count(1)
        self._under_way: dict[int, _Adoption] = {}
        self._pool: PeerPool | None = None
        self._pool_generation = 0
        self._pool_used = 0.0
        self._quiet_until = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._told = (0, 0)
        self.num_adopted_tokens = 0
        """Whose KV was copied and used so far."""
        self.num_failed = 0
        """Adoptions that came to nothing though something was asked for, but for sequences that left."""

    @property
    def num_under_way(self) -> int:
        """Sequences that are held back."""
        return len(self._under_way)

    @property
    def is_copying(self) -> bool:
        """Whether the next turn has something to copy."""
        return any(one.stage is _Stage.COPYING for one in self._under_way.values())

    def begin(self, sequence: Sequence) -> None:
        """Hold a waiting sequence back and ask for its beginning, where that may be worth it."""
        pool, tokens, now = self._keeper.pool, sequence.tokens[: sequence.drafts_from], self._clock()
        known = pool.match(tokens)
        num_missing = max(len(tokens) - 1, 0) // pool.block_size - len(known)
        is_busy = len(self._under_way) >= MAX_ADOPTIONS or now < self._quiet_until
        if is_busy or num_missing * pool.block_size < MIN_TOKENS:
            return
        number = next(self._numbers)
        # Held, since what is copied stands behind it.
        held = pool.allocate(len(known), known)
        self._under_way[number] = _Adoption(sequence, tuple(tokens), now, held)
        sequence.is_held = True
        self._lender.ask(number, tuple(tokens), len(known))

    def offered(self, number: int, offer: Offer) -> None:
        """The lender lends."""
        adoption = self._under_way.get(number)
        if adoption is None or adoption.stage is not _Stage.ASKED:
            self._lender.release(number, offer.generation, offer.loan_id)
            return
        adoption.offer = offer
        try:
            self._open(offer)
        except AllroadsError as error:
            self._fail(number, error.message)
            return
        room = min(len(offer.blocks), self._keeper.pool.num_free)
        adoption.fresh = self._keeper.pool.allocate(room)
        adoption.stage = _Stage.COPYING

    def refused(self, number: int) -> None:
        """The lender has nothing that is not here."""
        self._end(number)

    def failed(self, number: int, reason: str) -> None:
        """No answer came, or one that says why not."""
        self._fail(number, reason)

    def released(self, number: int, *, was_good: bool) -> None:
        """The loan is over; what was copied counts if it had lasted until now."""
        adoption = self._under_way.get(number)
        if adoption is None or adoption.stage is not _Stage.RELEASING:
            return
        if not was_good:
            self._fail(number, "the loan was over before the blocks were copied")
            return
        pool = self._keeper.pool
        blocks = [*adoption.known, *adoption.fresh[: adoption.num_copied]]
        pool.register(blocks, adoption.tokens[: len(blocks) * pool.block_size])
        self.num_adopted_tokens += adoption.num_copied * pool.block_size
        self._pause_s = FIRST_PAUSE_S
        self._end(number, is_good=True)

    def turn(self) -> None:
        """Copy a part of what is lent, and wait no longer for what takes too long."""
        now = self._clock()
        for number, adoption in list(self._under_way.items()):
            if adoption.sequence.state is not State.WAITING:
                self._end(number)
            elif now - adoption.since >= LIMIT_S:
                self._fail(number, f"it took longer than {LIMIT_S} s")
        room = 0 if self._pool is None else self._pool.blocks_per_turn
        for number, adoption in list(self._under_way.items()):
            if adoption.stage is _Stage.COPYING:
                room -= self._copy(number, adoption, room, now)
        if self._pool is not None and not self.is_copying and now - self._pool_used >= LINGER_S:
            self.close()

    def close(self) -> None:
        """Let go of the lender's memory, and say in one line what came of having it open."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                pool.close()
            except AllroadsError as error:
                logger.warning("KV of %s cannot be let go: %s", self._lender.name, error.message)
            num_tokens, num_failed = self.num_adopted_tokens - self._told[0], self.num_failed - self._told[1]
            self._told = self.num_adopted_tokens, self.num_failed
            logger.info(
                "KV of %d tokens was adopted from %s, %d sequence(s) went without",
                num_tokens,
                self._lender.name,
                num_failed,
            )

    def _open(self, offer: Offer) -> None:
        """Have the pool open that an offer is of. A lender that was started again has another."""
        if self._pool is not None and self._pool_generation != offer.generation:
            for number, other in list(self._under_way.items()):
                if other.stage is _Stage.COPYING:
                    self._fail(number, "the lender was started again")
            self.close()
        if self._pool is None:
            self._pool = offer.open_pool()
            self._pool_generation = offer.generation
        self._pool_used = self._clock()

    def _copy(self, number: int, adoption: _Adoption, room: int, now: float) -> int:
        """Copy up to `room` blocks of an adoption, or give the loan back where it has all; how many were copied."""
        if self._pool is None or adoption.offer is None:
            return 0
        done, self._pool_used = adoption.num_copied, now
        is_late = now - adoption.since >= _COPY_LIMIT_S
        part = slice(done, done if is_late else min(done + max(room, 0), len(adoption.fresh)))
        try:
            if part.stop > done:
                self._pool.copy(adoption.offer.blocks[part], adoption.fresh[part])
                adoption.num_copied = part.stop
            is_over = (is_late or part.stop == len(adoption.fresh)) and self._pool.is_settled()
        except AllroadsError as error:
            self._fail(number, error.message)
            return 0
        if is_over:
            adoption.stage = _Stage.RELEASING
            self._lender.release(number, adoption.offer.generation, adoption.offer.loan_id)
        return part.stop - done

    def _fail(self, number: int, reason: str) -> None:
        """Let a sequence compute, say why once, and leave the lender alone for a while."""
        if number not in self._under_way:
            return
        self._end(number)
        self.num_failed += 1
        now = self._clock()
        if now >= self._quiet_until:
            logger.warning("KV is not adopted from %s: %s; it is computed here", self._lender.name, reason)
            self._quiet_until = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _end(self, number: int, *, is_good: bool = False) -> None:
        """Let a sequence go on. Copies that do not count are overwritten: nobody knows what is in them."""
        adoption = self._under_way.pop(number, None)
        if adoption is None:
            return
        if not is_good:
            self._keeper.spoil(adoption.fresh)
            if adoption.offer is not None and adoption.stage is not _Stage.RELEASING:
                self._lender.release(number, adoption.offer.generation, adoption.offer.loan_id)
        self._keeper.give_up([*adoption.known, *adoption.fresh])
        adoption.sequence.is_held = False

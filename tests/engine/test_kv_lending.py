"""Loans of KV in any order with what a pool's owners do: exact counts, and no good word for a block that changed."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from allroads.engine.block_pool import BlockPool
from allroads.engine.kv_lending import LOAN_LIMIT_S, KvLending

NUM_BLOCKS, BLOCK = 24, 2


@dataclass(eq=False)
class Owner:
    """A sequence: its tokens, all of which have KV, and its blocks, of which the first are known."""

    tokens: list[int]
    blocks: list[int]
    num_known: int


@dataclass(eq=False)
class Loan:
    number: int
    written: dict[int, int]
    """What was in its blocks when it began."""


@dataclass(eq=False)
class Model:
    """A pool with owners and borrowers. Content of a block is the number of the write that put it there."""

    rng: random.Random
    now: float = 0.0
    owners: list[Owner] = field(default_factory=list)
    loans: list[Loan] = field(default_factory=list)
    written: Counter[int] = field(default_factory=Counter)
    num_good: int = 0
    num_bad: int = 0

    def __post_init__(self) -> None:
        self.pool = BlockPool(NUM_BLOCKS, BLOCK)
        self.lending = KvLending(self, clock=lambda: self.now)

    def give_up(self, blocks: Sequence[int]) -> None:
        self.pool.free(blocks)

    def spoil(self, blocks: Sequence[int]) -> None:
        self.write(blocks)

    def write(self, blocks: Sequence[int]) -> None:
        """Nobody else may read them."""
        for block in blocks:
            assert self.pool.ref_count(block) == 1
            self.written[block] += 1

    def tokens(self) -> list[int]:
        """Many that begin alike."""
        return [index // 3 for index in range(self.rng.randrange(1, 13))] + [self.rng.randrange(2)]

    def open(self) -> None:
        tokens = self.tokens()
        prefix = self.pool.match(tokens)
        needed = self.pool.num_needed(len(tokens))
        if self.pool.can_allocate(needed, prefix):
            blocks = self.pool.allocate(needed, prefix)
            self.write(blocks[len(prefix) :])
            self.owners.append(Owner(tokens, blocks, len(prefix)))

    def register(self) -> None:
        if self.owners:
            owner = self.rng.choice(self.owners)
            self.pool.register(owner.blocks, owner.tokens)
            owner.num_known = len(owner.tokens) // BLOCK

    def rewrite(self) -> None:
        """As `Engine.truncate` does where a block that others may share is to be written again."""
        if self.owners:
            owner = self.rng.choice(self.owners)
            first = self.rng.randrange(len(owner.blocks))
            known = owner.blocks[first : owner.num_known]
            self.lending.revoke(known)
            if not any(self.pool.is_shared(block) for block in owner.blocks[first:]):
                self.pool.forget(known)
                self.write(owner.blocks[first:])
                owner.num_known = min(owner.num_known, first)
                owner.tokens[first * BLOCK :] = [2] * (len(owner.tokens) - first * BLOCK)

    def fail(self) -> None:
        """Blocks turned out bad: nobody may use copies of them."""
        if self.owners:
            owner = self.rng.choice(self.owners)
            self.pool.forget(owner.blocks)
            for block in owner.blocks:
                self.written[block] += 1

    def close(self) -> None:
        if self.owners:
            owner = self.owners.pop(self.rng.randrange(len(self.owners)))
            self.pool.free(owner.blocks)

    def lend(self) -> None:
        tokens = self.tokens()
        num_known = self.rng.randrange(3)
        known = self.pool.match(tokens)
        loan = self.lending.lend(tokens, num_known)
        assert (loan is None) == (len(known) <= num_known)
        if loan is not None:
            assert list(loan.blocks) == known[num_known:]
            self.loans.append(Loan(loan.loan_id, {block: self.written[block] for block in known}))

    def release(self) -> None:
        if self.loans:
            loan = self.loans.pop(self.rng.randrange(len(self.loans)))
            generation = self.lending.generation
            if self.rng.random() < 0.1:
                assert not self.lending.release(generation + 1, loan.number)
            if self.lending.release(generation, loan.number):
                self.num_good += 1
                assert all(self.written[block] == number for block, number in loan.written.items())
            else:
                self.num_bad += 1
            assert not self.lending.release(generation, loan.number)

    def wait(self) -> None:
        self.now += LOAN_LIMIT_S * self.rng.random() / 4
        self.lending.expire()

    def check(self) -> None:
        self.pool.check()
        held = {block for owner in self.owners for block in owner.blocks}
        if not self.lending.num_loans:
            assert self.pool.num_used == len(held)
        assert self.pool.num_used >= len(held)


@pytest.mark.parametrize("seed", range(3))
def test_random_operations(seed: int) -> None:
    model = Model(random.Random(seed))
    operations = [
        *[model.open] * 4, *[model.register] * 4, *[model.lend] * 4, *[model.release] * 2,
        model.close, model.close, model.rewrite, model.fail, model.wait,
    ]  # fmt: skip
    for _ in range(3000):
        model.rng.choice(operations)()
        model.check()
    while model.owners:
        model.close()
    assert min(model.num_good, model.num_bad, model.lending.num_broken) > 50, "too little happened to tell anything"
    model.now += LOAN_LIMIT_S
    model.lending.expire()
    model.check()
    assert (model.lending.num_loans, model.pool.num_free) == (0, NUM_BLOCKS)

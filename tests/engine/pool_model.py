"""A slow, plain account of a block pool: who holds what, and what each block really contains."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from allroads.engine.block_pool import BlockPool
from allroads.errors import Internal, ResourceExhausted

BAD = -1
"""Content that nobody may be given."""


@dataclass(eq=False)
class Owner:
    """A sequence: its tokens, and the blocks that hold their KV or are reserved."""

    tokens: list[int]
    numbers: list[int]
    """Of each prefix of the tokens: what their KV is."""
    blocks: list[int]


class PoolModel:
    """Acts on a pool as sequences would, and knows by itself what must come of it.

    KV at a position depends on all tokens up to it, so what is written there is a number of that whole prefix.
    """

    def __init__(self, pool: BlockPool, rng: random.Random) -> None:
        self.pool = pool
        self.rng = rng
        self.owners: list[Owner] = []
        self.num_matched = 0
        self.num_refused = 0
        self._contents: dict[int, list[int]] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._prompts: list[list[int]] = [[]]
        self._barred: set[int] = set()

    def open(self) -> None:
        """Start a sequence with some of the tokens of an earlier one."""
        old = self.rng.choice(self._prompts[-20:])
        size = self.pool.block_size
        tokens = old[: self.rng.randint(0, len(old))] + self._random_tokens(self.rng.randint(1, 3 * size + 3))
        self._start(tokens, room=self.rng.randint(0, 2 * size))

    def fork(self) -> None:
        """Start a sequence that shares with a running one all that it can."""
        tokens = self.rng.choice(self.owners).tokens
        self._start(tokens + self._random_tokens(1), room=self.rng.randint(0, self.pool.block_size))

    def append(self) -> None:
        """Write some tokens into blocks that are reserved."""
        owner = self.rng.choice(self.owners)
        room = len(owner.blocks) * self.pool.block_size - len(owner.tokens)
        self._write(owner, self._random_tokens(min(room, self.rng.randint(1, 2 * self.pool.block_size))))

    def register(self) -> None:
        """Let others share a sequence: all its full blocks are found, unless what they hold is bad."""
        owner = self.rng.choice(self.owners)
        self.pool.register(owner.blocks, owner.tokens)
        if not self._is_bad(owner) and not self._barred.intersection(owner.blocks):
            assert len(self._match([*owner.tokens, 0])) == len(owner.tokens) // self.pool.block_size

    def roll_back(self) -> None:
        """Drop the end of a sequence as far as it is alone with it, and write something else there."""
        owner = self.rng.choice(self.owners)
        size, held = self.pool.block_size, self._held()
        shortest = size * max((index + 1 for index, block in enumerate(owner.blocks) if held[block] > 1), default=0)
        if shortest < len(owner.tokens):
            length = self.rng.randint(shortest, len(owner.tokens) - 1)
            self.pool.forget(owner.blocks[length // size :])
            num_dropped = len(owner.tokens) - length
            owner.tokens, owner.numbers = owner.tokens[:length], owner.numbers[:length]
            self._write(owner, self._random_tokens(num_dropped))

    def fail(self) -> None:
        """Find a sequence's KV bad, whoever else holds it, and end the sequence."""
        owner = self.rng.choice(self.owners)
        held = self._held()
        self.pool.forget(owner.blocks)
        for block in owner.blocks:
            self._contents[block] = [BAD] * self.pool.block_size
        self._barred |= {block for block in owner.blocks if held[block] > 1}
        self._end(owner)

    def close(self) -> None:
        """End a sequence; its tokens are likely to be asked for again."""
        owner = self.rng.choice(self.owners)
        self._prompts.append(owner.tokens)
        self._end(owner)

    def misuse(self) -> None:
        """Do what is forbidden: it is refused, and changes nothing."""
        size, held, before = self.pool.block_size, self._held(), self._counts()
        unheld = [block for block in range(self.pool.num_blocks) if not held[block]][:1]
        mine = self.rng.choice(self.owners).blocks if self.owners else []
        with pytest.raises(Internal):
            self.pool.forget([*mine, self.pool.num_blocks])
        with pytest.raises(Internal):
            self.pool.register(mine, [0] * (len(mine) + 1) * size)
        for wrong in ([self.pool.num_blocks], [-1], [10**9], mine[:1] * 2, unheld):
            if wrong:
                with pytest.raises(Internal):
                    self.pool.free([*mine[1:], *wrong])
        if unheld:
            with pytest.raises(Internal):
                self.pool.register(unheld, [0] * size)
        assert self._counts() == before

    def check(self) -> None:
        """Compare the pool with this account."""
        held, size = self._held(), self.pool.block_size
        self.pool.check()
        assert self._counts() == (
            self.pool.num_blocks - len(held),
            [held[block] for block in range(self.pool.num_blocks)],
        )
        assert self.pool.num_free + self.pool.num_used == self.pool.num_blocks
        for owner in self.owners:
            for index, block in enumerate(owner.blocks):
                right = owner.numbers[index * size : (index + 1) * size]
                content = self._contents[block][: len(right)]
                assert content == right or BAD in content, "a block was given away under one who holds it"

    def _start(self, tokens: list[int], *, room: int) -> None:
        held, before = self._held(), self._counts()
        prefix = self._match(tokens)
        count = self.pool.num_needed(len(tokens) + room)
        num_free = self.pool.num_blocks - len(held) - sum(not held[block] for block in prefix)
        fits = count - len(prefix) <= num_free
        assert self.pool.can_allocate(count, prefix) == fits
        if not fits:
            with pytest.raises(ResourceExhausted):
                self.pool.allocate(count, prefix)
            assert self._counts() == before
            self.num_refused += 1
            return
        blocks = self.pool.allocate(count, prefix)
        fresh = blocks[len(prefix) :]
        assert blocks[: len(prefix)] == prefix
        assert len(set(blocks)) == count
        assert not any(held[block] for block in fresh), "a fresh block has another owner"
        self._contents |= {block: [BAD] * self.pool.block_size for block in fresh}
        self.num_matched += len(prefix)
        num_known = len(prefix) * self.pool.block_size
        owner = Owner(tokens[:num_known], self._numbered(tokens[:num_known]), blocks)
        self.owners.append(owner)
        self._write(owner, tokens[num_known:])
        self._prompts.append(tokens)

    def _end(self, owner: Owner) -> None:
        self.owners.remove(owner)
        self.pool.free(owner.blocks)
        self._barred &= self._held().keys()

    def _match(self, tokens: list[int]) -> list[int]:
        """What the pool finds for tokens, which must be there."""
        found = self.pool.match(tokens)
        content = [number for block in found for number in self._contents[block]]
        assert len(content) < len(tokens)
        assert content == self._numbered(tokens)[: len(content)], "a matched block holds something else"
        return found

    def _write(self, owner: Owner, tokens: list[int]) -> None:
        """What is computed from bad KV is bad."""
        size, held = self.pool.block_size, self._held()
        begin, is_bad = len(owner.tokens), self._is_bad(owner)
        owner.tokens, owner.numbers = owner.tokens + tokens, self._numbered(owner.tokens + tokens)
        for position, number in enumerate(owner.numbers[begin:], begin):
            block = owner.blocks[position // size]
            assert held[block] == 1, "a shared block is written to"
            self._contents[block][position % size] = BAD if is_bad else number

    def _is_bad(self, owner: Owner) -> bool:
        size = self.pool.block_size
        return any(
            BAD in self._contents[block][: max(len(owner.tokens) - index * size, 0)]
            for index, block in enumerate(owner.blocks)
        )

    def _held(self) -> Counter[int]:
        """How many hold each block that somebody holds."""
        return Counter(block for owner in self.owners for block in owner.blocks)

    def _numbered(self, tokens: list[int]) -> list[int]:
        """A number of each prefix: of tokens[:1], tokens[:2] and so on."""
        numbers = [0]
        for token in tokens:
            numbers.append(self._numbers.setdefault((numbers[-1], token), len(self._numbers) + 1))
        return numbers[1:]

    def _random_tokens(self, count: int) -> list[int]:
        return [self.rng.randint(0, 1) for _ in range(count)]

    def _counts(self) -> tuple[int, list[int]]:
        return self.pool.num_free, [self.pool.ref_count(block) for block in range(self.pool.num_blocks)]

"""Who holds which block of the KV pool, and which blocks can be shared. Exact: free + used == total, always.

A block is *held* (by one sequence or several), *cached* (by nobody, but its content is known and can be
shared again) or *blank* (by nobody, content unknown). Cached and blank ones are free.
"""

from collections import OrderedDict
from collections.abc import Sequence

from ..errors import Internal, ResourceExhausted
from .prefix_index import PrefixIndex


class BlockPool:
    """A fixed number of blocks, each of `block_size` tokens, handed out, shared, and taken back."""

    def __init__(self, num_blocks: int, block_size: int, *, shares_prefixes: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._shares_prefixes = shares_prefixes
        self._num_holders = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Least recently used first, and no block before one that stands behind it."""
        self._index = PrefixIndex(block_size)
        self._barred: set[int] = set()
        """Held blocks that must not become known again before everybody has given them up."""

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._blank) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and whose content can be shared again."""
        return len(self._cached)

    def num_needed(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-num_tokens // self.block_size)

    def ref_count(self, block: int) -> int:
        """How many hold a block.

        Raises:
            Internal: there is no such block.
        """
        self._require_ids([block])
        return self._num_holders[block]

    def is_shared(self, block: int) -> bool:
        """Does more than one hold it? Then nobody may write to it.

        Raises:
            Internal: there is no such block.
        """
        return self.ref_count(block) > 1

    def match(self, tokens: Sequence[int]) -> list[int]:
        """The longest run of known blocks that hold the KV of the beginning of `tokens`; takes none of them.

        Never all of `tokens`: whoever asks must compute the last one, to see what comes after it. Good until
        the pool is changed.
        """
        return self._index.find(tokens, max(len(tokens) - 1, 0) // self.block_size)

    def can_allocate(self, count: int, prefix: Sequence[int] = ()) -> bool:
        """Could `count` blocks be had now, the first of which are `prefix`?"""
        num_revived = sum(block in self._cached for block in prefix)
        return count - len(prefix) <= self.num_free - num_revived

    def allocate(self, count: int, prefix: Sequence[int] = ()) -> list[int]:
        """Take blocks, all or none: those of `prefix`, which are shared, then fresh ones to write to.

        Fresh ones are blank while there are any, then the cached ones that were unused for longest.

        Args:
            count: blocks to take, those of `prefix` included.
            prefix: what `match` gave, or the beginning of it.

        Raises:
            ResourceExhausted: fewer are free.
            Internal: `prefix` is no known beginning of a sequence, or longer than `count`.
        """
        self._require_beginning(prefix, count)
        if not self.can_allocate(count, prefix):
            shared = f", {len(prefix)} of them shared" if prefix else ""
            raise ResourceExhausted(f"{count} KV blocks needed{shared}, {self.num_free} of {self.num_blocks} free")
        for block in prefix:
            self._cached.pop(block, None)
            self._num_holders[block] += 1
        return [*prefix, *(self._take_fresh() for _ in range(count - len(prefix)))]

    def free(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each: all or none.

        Raises:
            Internal: one of them is free already, named twice, or unknown; nothing is changed.
        """
        if len(set(blocks)) != len(blocks) or not all(self._is_held(block) for block in blocks):
            raise Internal(f"blocks {blocks} cannot be freed: free already, named twice or unknown")
        known: list[int] = []
        for block in blocks:
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                self._barred.discard(block)
                (known if block in self._index else self._blank).append(block)
        # What they stand behind counts as used too, though another's block may be the known one there: else
        # a head could be reused before its tail.
        for block in self._index.tails_first(known):
            if self._num_holders[block] == 0:
                self._cached[block] = None
                self._cached.move_to_end(block)

    def register(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Let others share the full blocks among a sequence's, which hold the KV of `tokens`.

        If another block is known for the same beginning, it stays the known one and later blocks of this
        sequence are known behind it. Said again with a few more tokens, it costs little.

        Args:
            blocks: the sequence's blocks in order, from its start.
            tokens: those whose KV is computed, from the start. What does not fill a block is left out.

        Raises:
            Internal: there are fewer blocks than tokens fill, one is held by nobody, or is known as something
                else.
        """
        if not self._shares_prefixes:
            return
        num_full = len(tokens) // self.block_size
        full = blocks[:num_full]
        if len(full) < num_full or not all(self._is_held(block) for block in full):
            raise Internal(f"blocks {blocks} cannot hold {len(tokens)} tokens: too few, or not held by anybody")
        if self._barred:
            # What comes after such a block was computed from it.
            full = full[: next((i for i, block in enumerate(full) if block in self._barred), len(full))]
        self._index.add(full, tokens)

    def forget(self, blocks: Sequence[int]) -> None:
        """Share the content of blocks no more: it will be overwritten, or turned out bad.

        Nor that of blocks behind them, which is worth nothing without. A block with one holder may be
        registered anew when it holds something else. One with several cannot be overwritten, so its content
        must be bad: it and what its holders compute from it stay unknown until all have given it up.

        Raises:
            Internal: one of them is unknown; nothing is changed.
        """
        self._require_ids(blocks)
        for block in blocks:
            self._drop(block)
            if self._num_holders[block] > 1:
                self._barred.add(block)

    def check(self) -> None:
        """Verify every invariant, by a pass over the whole pool.

        Raises:
            Internal: one is broken; the message says which.
        """
        self._index.check()
        held = [block for block, count in enumerate(self._num_holders) if count > 0]
        if sorted([*held, *self._cached, *self._blank]) != list(range(self.num_blocks)):
            raise Internal("each block must be exactly one of held, cached and blank")
        if len(held) != self.num_used or min(self._num_holders, default=0) < 0:
            raise Internal(f"{len(held)} blocks are held, {self.num_used} are counted as used")
        if not all(block in self._index for block in self._cached):
            raise Internal("a cached block is not known")
        if any(block in self._index for block in (*self._blank, *self._barred)):
            raise Internal("a blank or barred block is known")
        if not all(self._num_holders[block] for block in self._barred):
            raise Internal("a block that nobody holds is barred")
        seen: set[int] = set()
        for block in self._cached:
            seen.add(block)
            if self._index.block_before(block) in seen:
                raise Internal(f"cached block {block} would be reused after the one that it stands behind")

    def _take_fresh(self) -> int:
        if not self._blank:
            self._drop(next(iter(self._cached)))
        block = self._blank.pop()
        self._num_holders[block] = 1
        return block

    def _drop(self, block: int) -> None:
        """Make a block unknown, and all behind it."""
        for dropped in self._index.drop(block):
            if dropped in self._cached:
                del self._cached[dropped]
                self._blank.append(dropped)

    def _is_held(self, block: int) -> bool:
        return 0 <= block < self.num_blocks and self._num_holders[block] > 0

    def _require_ids(self, blocks: Sequence[int]) -> None:
        if not all(0 <= block < self.num_blocks for block in blocks):
            raise Internal(f"blocks {blocks} are not all among the {self.num_blocks} of the pool")

    def _require_beginning(self, prefix: Sequence[int], count: int) -> None:
        previous: int | None = None
        for block in prefix:
            if block not in self._index or self._index.block_before(block) != previous:
                raise Internal(f"blocks {prefix} are no known beginning of a sequence")
            previous = block
        if count < len(prefix):
            raise Internal(f"{count} blocks cannot begin with {len(prefix)} shared ones")

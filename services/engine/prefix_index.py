"""Which KV blocks hold what: a tree of full blocks, each behind the block that precedes it in a sequence.

The KV of a token depends on every token before it. So a block is known by its place, which is the known
block before it and its own tokens: each place keeps those behind it in a dict keyed by their tokens. That
is a chain of hashes verified on every hit, since a dict compares the keys whose hashes are equal, and a
place is itself and not a hash. Two blocks count as the same only if all tokens up to their ends are equal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import Internal

Piece = tuple[int, ...]
"""The tokens of one full block."""


@dataclass(eq=False, slots=True)
class _Place:
    """Where a known block stands; the root of the tree has no block and nothing before it."""

    block: int
    piece: Piece
    before: "_Place | None" = None
    depth: int = 0
    behind: dict[Piece, "_Place"] = field(default_factory=dict)


class PrefixIndex:
    """The known blocks. Whatever is known can be found: no block stays without the one before it."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._root = _Place(-1, ())
        self._places: dict[int, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, block: int) -> bool:
        return block in self._places

    def find(self, tokens: Sequence[int], limit: int) -> list[int]:
        """The longest run of known blocks that hold the beginning of `tokens`, `limit` blocks at most."""
        found: list[int] = []
        place = self._root
        for index in range(limit):
            following = place.behind.get(self._piece(tokens, index))
            if following is None:
                break
            place = following
            found.append(place.block)
        return found

    def add(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Know that `blocks`, in order from a sequence's start, are full of `tokens`.

        Where another block is known for the same tokens, that one stays, and what follows goes behind it.
        Starts at the last of `blocks` that is known already, so that adding a few more is cheap.

        Raises:
            Internal: a block is known as something else.
        """
        place, start = self._root, 0
        for index in reversed(range(len(blocks))):
            if blocks[index] in self._places:
                place, start = self._places[blocks[index]], index + 1
                if place.piece != self._piece(tokens, index):
                    raise Internal(f"block {blocks[index]} is known for other tokens: forget it first")
                break
        for index in range(start, len(blocks)):
            piece = self._piece(tokens, index)
            following = place.behind.get(piece)
            if following is None:
                block = blocks[index]
                if block in self._places:
                    raise Internal(f"block {block} cannot stand at two places of a sequence")
                following = _Place(block, piece, place, place.depth + 1)
                place.behind[piece] = self._places[block] = following
            place = following

    def drop(self, block: int) -> list[int]:
        """Know a block no more, nor any behind it, which nobody could find now; all that were dropped."""
        place = self._places.get(block)
        if place is None or place.before is None:
            return []
        del place.before.behind[place.piece]
        dropped: list[int] = []
        pending = [place]
        while pending:
            place = pending.pop()
            del self._places[place.block]
            dropped.append(place.block)
            pending += place.behind.values()
        return dropped

    def block_before(self, block: int) -> int | None:
        """The known block that a known one stands behind; None at the start of a sequence."""
        before = self._places[block].before
        return None if before is None or before is self._root else before.block

    def tails_first(self, blocks: Iterable[int]) -> list[int]:
        """Known blocks and all that they stand behind, each once and after those behind it."""
        depths: dict[int, int] = {}
        for block in blocks:
            place = self._places[block]
            while place.before is not None and place.block not in depths:
                depths[place.block] = place.depth
                place = place.before
        return sorted(depths, key=depths.__getitem__, reverse=True)

    def check(self) -> None:
        """See that the tree and the blocks' places agree.

        Raises:
            Internal: they do not.
        """
        num_reached = 0
        pending = [self._root]
        while pending:
            place = pending.pop()
            for piece, following in place.behind.items():
                if following.before is not place or following.depth != place.depth + 1 or following.piece != piece:
                    raise Internal(f"block {following.block} does not stand where it is found")
                if len(piece) != self._block_size:
                    raise Internal(f"block {following.block} is known for {len(piece)} tokens")
                if self._places.get(following.block) is not following:
                    raise Internal(f"block {following.block} is found at a place that is not its own")
                num_reached += 1
                pending.append(following)
        if num_reached != len(self._places):
            raise Internal(f"{len(self._places)} blocks are known, {num_reached} of them can be found")

    def _piece(self, tokens: Sequence[int], index: int) -> Piece:
        return tuple(tokens[index * self._block_size : (index + 1) * self._block_size])

"""Who owns which block of the KV pool. Exact: free + used == total, always."""

from ..errors import Internal, ResourceExhausted


class BlockPool:
    """A fixed number of blocks, each of `block_size` tokens, handed out and taken back."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_used = [False] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def num_needed(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take blocks: all or none.

        Raises:
            ResourceExhausted: fewer are free.
        """
        if count > len(self._free):
            raise ResourceExhausted(f"{count} KV blocks needed, {len(self._free)} of {self.num_blocks} free")
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        for block in taken:
            self._is_used[block] = True
        return taken

    def free(self, blocks: list[int]) -> None:
        """Give blocks back: all or none.

        Raises:
            Internal: one of them is free already, named twice, or unknown; nothing is changed.
        """
        if len(set(blocks)) != len(blocks) or not all(0 <= b < self.num_blocks and self._is_used[b] for b in blocks):
            raise Internal(f"blocks {blocks} cannot be freed: free already, named twice or unknown")
        for block in blocks:
            self._is_used[block] = False
        self._free += blocks

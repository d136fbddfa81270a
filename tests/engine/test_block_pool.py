"""Exact accounting of KV blocks (C26)."""

import random

import pytest
from allroads.engine.block_pool import BlockPool
from allroads.errors import Internal, ResourceExhausted


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_ten_thousand_random_operations(block_size: int) -> None:
    rng = random.Random(block_size)
    pool = BlockPool(50, block_size)
    owned: list[list[int]] = []
    for _ in range(10_000):
        if owned and rng.random() < 0.5:
            pool.free(owned.pop(rng.randrange(len(owned))))
        else:
            needed = pool.num_needed(rng.randint(0, 12 * block_size))
            if needed > pool.num_free:
                with pytest.raises(ResourceExhausted):
                    pool.allocate(needed)
            else:
                owned.append(pool.allocate(needed))
        held = [block for blocks in owned for block in blocks]
        assert len(set(held)) == len(held), "a block has two owners"
        assert pool.num_free + len(held) == pool.num_blocks
    for blocks in owned:
        pool.free(blocks)
    assert pool.num_free == 50


def test_edges_of_blocks() -> None:
    pool = BlockPool(4, 16)
    assert [pool.num_needed(tokens) for tokens in (0, 1, 15, 16, 17, 32, 33)] == [0, 1, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("wrong", ["twice", "doubled", "unknown", "negative"])
def test_wrong_free_changes_nothing(wrong: str) -> None:
    pool = BlockPool(8, 16)
    blocks = pool.allocate(3)
    freed = {"twice": blocks, "doubled": [blocks[0], blocks[0]], "unknown": [99], "negative": [-1]}[wrong]
    if wrong == "twice":
        pool.free(blocks)
    free = pool.num_free
    with pytest.raises(Internal):
        pool.free(freed)
    assert pool.num_free == free

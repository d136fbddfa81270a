"""Exact accounting of KV blocks (C26), and sharing of those that hold the same tokens."""

import random
from collections.abc import Callable

import pytest
from allroads.engine.block_pool import BlockPool
from allroads.errors import Internal, ResourceExhausted

from .pool_model import PoolModel


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_ten_thousand_random_operations(block_size: int) -> None:
    model = PoolModel(BlockPool(32, block_size), random.Random(block_size))
    everywhere = [model.open, model.open, model.misuse]
    with_owners = [
        model.fork, model.append, model.append, model.register, model.register,
        model.roll_back, model.close, model.close, model.fail,
    ]  # fmt: skip
    for _ in range(10_000):
        model.rng.choice(everywhere + with_owners if model.owners else everywhere)()
        model.check()
    while model.owners:
        model.close()
        model.check()
    assert model.pool.num_free == 32
    assert min(model.num_matched, model.num_refused) > 100, "too little was shared or refused to tell anything"


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


def _known(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Blocks of a sequence that came, shared what it could, wrote the rest, and is still there."""
    prefix = pool.match(tokens)
    blocks = pool.allocate(pool.num_needed(len(tokens)), prefix)
    pool.register(blocks, tokens)
    return blocks


def test_a_prefix_is_shared_by_whole_blocks_and_never_all_of_it() -> None:
    pool = BlockPool(8, 2)
    blocks = _known(pool, [1, 2, 3, 4, 5])
    assert [pool.match([1, 2, 3, 4, 5][:length]) for length in range(6)] == [
        [], [], [], blocks[:1], blocks[:1], blocks[:2],
    ]  # fmt: skip
    assert pool.match([1, 2, 3, 9, 9]) == blocks[:1]
    assert pool.match([3, 4, 1, 2, 5]) == [], "the same tokens elsewhere in a sequence have other KV"
    taken = pool.allocate(3, pool.match([1, 2, 3, 4, 6]))
    assert taken[:2] == blocks[:2]
    assert [pool.ref_count(block) for block in (*blocks, taken[2])] == [2, 2, 1, 1]
    pool.free(blocks)
    assert [pool.is_shared(block) for block in taken] == [False] * 3
    assert (pool.num_free, pool.num_used) == (5, 3)


@pytest.mark.parametrize(("mine", "other"), [(-1, -2), (0, 2**61 - 1), (1, 2**61)])
def test_equal_hashes_do_not_mix(mine: int, other: int) -> None:
    assert hash((mine,)) == hash((other,))
    pool = BlockPool(4, 1)
    block = _known(pool, [mine])[0]
    assert pool.match([other, 5]) == []
    assert pool.match([mine, 5]) == [block]
    _known(pool, [other, 7])
    assert pool.match([mine, 7, 5]) == [block]


def test_what_was_unused_for_longest_is_reused_first_and_tails_before_heads() -> None:
    pool = BlockPool(6, 1)
    old, new = _known(pool, [1, 2, 3]), _known(pool, [7, 8])
    pool.free(old)
    pool.free(new)
    assert (pool.num_cached, pool.num_free) == (5, 6)
    assert pool.match([1, 2, 3, 4]) == old
    order = [block for _ in range(6) for block in pool.allocate(1)]
    assert order[1:] == [*reversed(old), *reversed(new)], "blank ones come first"
    assert pool.match([1, 2, 3, 4]) == []


def test_a_hit_makes_a_prefix_recently_used() -> None:
    pool = BlockPool(4, 1)
    old, new = _known(pool, [1, 2]), _known(pool, [7, 8])
    pool.free(old)
    pool.free(new)
    pool.free(pool.allocate(1, pool.match([1, 9])))
    assert [pool.allocate(1) for _ in range(4)] == [old[1:], new[1:], new[:1], old[:1]]


def test_a_head_is_not_reused_before_the_tail_of_one_who_had_its_own_copy() -> None:
    pool = BlockPool(4, 1)
    first, copy = pool.allocate(1), pool.allocate(2)
    pool.register(first, [1])
    pool.register(copy, [1, 2])
    pool.free(first)
    pool.free(copy)
    assert pool.match([1, 2, 3]) == [first[0], copy[1]]
    order = [block for _ in range(4) for block in pool.allocate(1)]
    assert order[2:] == [copy[1], first[0]]


def test_cached_blocks_of_the_prefix_are_not_free_for_the_rest() -> None:
    pool = BlockPool(4, 1)
    pool.free(_known(pool, [1, 2, 3]))
    prefix = pool.match([1, 2, 3, 4])
    assert [pool.can_allocate(count, prefix) for count in (3, 4, 5)] == [True, True, False]
    with pytest.raises(ResourceExhausted, match="5 KV blocks needed, 3 of them shared, 4 of 4 free"):
        pool.allocate(5, prefix)
    assert pool.num_cached == 3
    assert pool.allocate(4, prefix)[:3] == prefix
    assert pool.num_free == 0
    # Held ones take nothing from the rest.
    assert pool.can_allocate(3, prefix)
    assert not pool.can_allocate(4, prefix)


def test_the_first_block_known_for_a_prefix_stays_and_the_chain_goes_on_behind_it() -> None:
    pool = BlockPool(8, 1)
    first, second = pool.allocate(2), pool.allocate(3)
    pool.register(first, [1, 2])
    pool.register(second, [1, 2, 3])
    assert pool.match([1, 2, 3, 4]) == [*first, second[2]]
    pool.free(second)
    assert pool.num_cached == 1, "what nobody can find is blank"
    pool.check()


def test_a_block_that_loses_the_one_before_it_is_unknown_and_can_be_known_again() -> None:
    pool = BlockPool(3, 1)
    first, second = pool.allocate(1), pool.allocate(2)
    pool.register(first, [1])
    pool.register(second, [1, 2])
    pool.free(first)
    assert pool.allocate(1) == first
    pool.check()
    assert pool.match([1, 2, 3]) == []
    pool.register(second, [1, 2])
    assert pool.match([1, 2, 3]) == second


def test_a_block_that_was_forgotten_can_be_registered_as_something_else() -> None:
    pool = BlockPool(4, 1)
    blocks = _known(pool, [1, 2, 3])
    with pytest.raises(Internal, match="known for other tokens"):
        pool.register(blocks, [1, 2, 4])
    pool.forget(blocks[1:])
    assert pool.match([1, 2, 3, 4]) == blocks[:1]
    pool.register(blocks, [1, 5, 6])
    assert pool.match([1, 5, 6, 7]) == blocks
    pool.free(blocks)
    pool.forget(blocks)
    assert (pool.num_cached, pool.num_free) == (0, 4)


def test_a_shared_block_that_is_forgotten_is_not_known_again_before_all_have_given_it_up() -> None:
    pool = BlockPool(4, 1)
    failed = _known(pool, [1, 2])
    other = pool.allocate(3, pool.match([1, 2, 3]))
    pool.forget(failed)
    pool.free(failed)
    pool.register(other, [1, 2, 3])
    assert pool.match([1, 2, 3, 4]) == []
    pool.free(other)
    assert pool.num_cached == 0
    pool.check()
    again = _known(pool, [1, 2, 3])
    assert pool.match([1, 2, 3, 4]) == again


def test_a_longer_chain_than_python_may_recurse() -> None:
    pool = BlockPool(20_000, 1)
    tokens = list(range(20_000))
    blocks = _known(pool, tokens)
    pool.check()
    pool.forget(blocks[:1])
    assert pool.match([*tokens, 0]) == []
    pool.free(blocks)
    assert (pool.num_cached, pool.num_free) == (0, 20_000)


def test_nonsense_is_refused() -> None:
    pool = BlockPool(6, 1)
    blocks = _known(pool, [1, 2, 3])
    for wrong in (blocks[1:], blocks[::-1], [blocks[0], blocks[0]], [5], [-1], [99]):
        with pytest.raises(Internal, match="no known beginning"):
            pool.allocate(4, wrong)
    with pytest.raises(Internal, match="2 blocks cannot begin with 3"):
        pool.allocate(2, blocks)
    assert pool.num_free == 3
    with pytest.raises(Internal, match="cannot stand at two places"):
        pool.register([blocks[0], *pool.allocate(1) * 2], [1, 8, 9])
    with pytest.raises(Internal):
        pool.ref_count(-1)
    with pytest.raises(Internal):
        pool.is_shared(6)


def test_sharing_can_be_switched_off() -> None:
    pool = BlockPool(4, 1, shares_prefixes=False)
    blocks = _known(pool, [1, 2])
    assert pool.match([1, 2, 3]) == []
    pool.forget(blocks)
    pool.free(blocks)
    assert (pool.num_cached, pool.num_free) == (0, 4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda pool: pool._blank.pop(), "exactly one of"),
        (lambda pool: pool._num_holders.__setitem__(pool._blank[0], 1), "exactly one of"),
        (lambda pool: pool._cached.popitem(), "exactly one of"),
        (lambda pool: pool._index.drop(next(iter(pool._cached))), "not known"),
        (lambda pool: pool._blank.append(pool._cached.popitem()[0]), "blank or barred block is known"),
        (lambda pool: pool._barred.add(pool._blank[0]), "barred"),
        (lambda pool: pool._cached.move_to_end(next(iter(pool._cached))), "reused after"),
        (lambda pool: pool._index._places.popitem(), "not its own"),
        (lambda pool: setattr(pool._index._root.behind[(1,)], "piece", (2,)), "does not stand where"),
        (lambda pool: setattr(pool._index, "_block_size", 2), "known for 1 tokens"),
        (lambda pool: pool._index._root.behind[(1,)].behind.clear(), "can be found"),
    ],
)  # fmt: skip
def test_the_check_finds_what_is_broken(damage: Callable[[BlockPool], object], message: str) -> None:
    pool = BlockPool(6, 1)
    _known(pool, [7])
    pool.free(_known(pool, [1, 2, 3]))
    pool.check()
    damage(pool)
    with pytest.raises(Internal, match=message):
        pool.check()

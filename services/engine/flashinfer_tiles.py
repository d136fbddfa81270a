"""How flashinfer cuts a step into tiles of queries, and what follows: equal results in any company, and memory.

A kernel takes 16, 64 or 128 queries at once, and each has its own order of sums. All rows of a step get the same one:
by the mean of their tokens times the query heads per KV head, or where the shape is fixed by the most that one row
could have. Besides, long texts are cut into parts, as many as the whole step leaves room for, unless that is turned
off. (`PrefillSplitQOKVIndptr` and `PrefillPlan` in flashinfer's scheduler.cuh, `FA2DetermineCtaTileQ` in utils.cuh.)
"""

from .attention import KvShape

_SMALL, _MIDDLE, _LARGE = 16, 64, 128
_CTAS_PER_MULTIPROCESSOR = 2
_ALIGNMENT_BYTES = 4096


def invariant_rows(num_rows: int, num_tokens: int, group: int, *, is_fixed: bool) -> int:
    """How many rows a step must have, empty ones included, so that a row is computed alike in every step.

    Empty rows bring the mean, or the most, down to what a single token has, for which no smaller tile can be had. No
    text may be cut into parts besides.

    Args:
        num_rows: rows that the step has.
        num_tokens: tokens that it has; at least as many.
        group: query heads per KV head.
        is_fixed: whether the shape is fixed.
    """
    tile = _tile(group)
    if tile == _LARGE:
        return num_rows
    if is_fixed:
        return max(num_rows, num_tokens + 1 - tile // group)
    return max(num_rows, -(-num_tokens * group // tile))


def workspace_bytes(shape: KvShape, num_multiprocessors: int, num_rows: int = 0, num_tokens: int = 0) -> int:
    """Bytes that `plan` may ask for: sums and weights, in float32, of as many tiles as run at once.

    Args:
        shape: of the KV.
        num_multiprocessors: of the GPU.
        num_rows: of a fixed shape, empty ones included; 0 for steps of no fixed shape.
        num_tokens: of a fixed shape.
    """
    num_tiles, tile = _CTAS_PER_MULTIPROCESSOR * num_multiprocessors // shape.num_kv_heads, _LARGE
    if num_rows:
        group = shape.num_heads // shape.num_kv_heads
        tile = _tile(max(1, num_tokens - num_rows + 1) * group)
        num_tiles = max(num_tiles, -(-num_tokens * group // tile) + num_rows - 1)
    return num_tiles * tile * shape.num_heads * (shape.head_dim + 1) * 4 + _ALIGNMENT_BYTES


def _tile(num_queries: int) -> int:
    """Queries taken at once where a row has so many. Heads of 256 have no large tile, so this may say too much."""
    return _SMALL if num_queries <= _SMALL else _MIDDLE if num_queries <= _MIDDLE else _LARGE

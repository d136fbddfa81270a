"""Which shapes of steps are recorded, and which one a step gets."""

import pytest
from allroads.engine.buckets import Bucket, Buckets
from hypothesis import given, settings
from hypothesis import strategies as st

limits = st.tuples(st.integers(1, 600), st.integers(1, 600))


def _has_place(most: tuple[int, int], num_rows: int, num_tokens: int) -> bool:
    return num_rows <= most[0] and num_tokens <= most[1]


@settings(deadline=None, max_examples=200)
@given(limits, st.integers(1, 700), st.integers(1, 700))
def test_a_step_within_the_limits_gets_the_smallest_shape_and_others_none(
    most: tuple[int, int], num_rows: int, num_tokens: int
) -> None:
    num_rows = min(num_rows, num_tokens)
    buckets = Buckets.up_to(*most)
    bucket = buckets.pick(num_rows, num_tokens)
    assert (bucket is not None) == _has_place(most, num_rows, num_tokens)
    if bucket is None:
        return
    assert bucket.num_rows >= num_rows
    assert bucket.num_tokens >= num_tokens
    assert bucket.is_decode == (num_rows == num_tokens)
    rest = [one for one in (*buckets.decodes, *buckets.extends) if one.is_decode == bucket.is_decode]
    assert all(
        one.num_tokens >= bucket.num_tokens for one in rest if one.num_rows >= num_rows and one.num_tokens >= num_tokens
    )
    if bucket.is_decode:
        assert bucket.num_tokens < 2 * num_tokens
        assert bucket.num_tokens - num_tokens < (8 if num_tokens <= 64 else 16 if num_tokens <= 256 else 32)
    else:
        assert 2 * bucket.num_tokens <= 3 * num_tokens
    larger = buckets.pick(num_rows, num_tokens + 1)
    assert larger is None or num_rows == num_tokens or larger.num_tokens >= bucket.num_tokens


@given(limits)
def test_shapes_are_few_distinct_and_within_the_limits(most: tuple[int, int]) -> None:
    buckets = Buckets.up_to(*most)
    every = list(buckets.largest_first())
    assert len(set(every)) == len(every) < 60
    assert [one.num_tokens for one in every] == sorted((one.num_tokens for one in every), reverse=True)
    assert all(_has_place(most, one.num_rows, one.num_tokens) for one in every)
    assert all(one.is_decode for one in buckets.decodes)
    assert not any(one.is_decode for one in buckets.extends)


def test_what_is_recorded_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    buckets = Buckets.up_to(256, 128)
    assert [one.num_rows for one in buckets.decodes] == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    assert [one.num_tokens for one in buckets.extends] == [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert buckets.pick(4, 37) == Bucket(47, 48)
    waste = {
        kind: [1 - num_tokens / bucket.num_tokens for num_tokens in sizes if (bucket := buckets.pick(rows, num_tokens))]
        for kind, rows, sizes in (("extends", 1, range(2, 129)),)
    }
    waste["decodes"] = [1 - rows / bucket.num_rows for rows in range(1, 129) if (bucket := buckets.pick(rows, rows))]
    with capsys.disabled():
        for kind, shares in waste.items():
            print(f"\npadding of {kind}: {sum(shares) / len(shares):.1%} on average, {max(shares):.1%} at most")
    assert max(waste["extends"]) < 1 / 3
    assert max(waste["decodes"]) < 1 / 2


def test_one_sequence_or_one_token_needs_little() -> None:
    assert Buckets.up_to(1, 1) == Buckets((Bucket(1, 1),), ())
    assert Buckets.up_to(1, 4) == Buckets((Bucket(1, 1),), (Bucket(1, 2), Bucket(1, 3), Bucket(1, 4)))

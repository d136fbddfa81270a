"""For how much of a step another tier was at work, against counting moment by moment."""

from allroads.slm.overlap import Spans, overlap
from hypothesis import given
from hypothesis import strategies as st

Steps = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=12)
"""Pause before a step, and its length."""


def _spans(steps: list[tuple[int, int]]) -> tuple[Spans, set[int]]:
    """Steps, and the moments that they take."""
    spans, moments, end = Spans(), set(), 0
    for pause, length in steps:
        start, end = end + pause, end + pause + length
        assert spans.add(start, end)
        moments |= set(range(start, end))
    return spans, moments


@given(first=Steps, second=Steps, start=st.integers(0, 60), length=st.integers(1, 40))
def test_it_is_the_part_that_others_cover_together(
    first: list[tuple[int, int]], second: list[tuple[int, int]], start: int, length: int
) -> None:
    (one, its), (other, others) = _spans(first), _spans(second)
    covered = (its | others) & set(range(start, start + length))
    assert overlap(start, start + length, [one, other]) == len(covered) / length


def test_nobody_else_is_no_overlap() -> None:
    assert overlap(5, 9, []) == 0.0
    assert overlap(5, 9, [Spans()]) == 0.0


def test_steps_that_cannot_be_are_left_aside() -> None:
    spans = Spans()
    assert spans.add(10, 20)
    assert not spans.add(19, 30)
    assert not spans.add(25, 25)
    assert not spans.add(40, 30)
    assert spans.within(0, 100) == [(10, 20)]


def test_only_so_many_are_remembered() -> None:
    spans = Spans()
    for index in range(5000):
        assert spans.add(10 * index, 10 * index + 5)
    assert len(spans.within(0, 50_000)) == 4096

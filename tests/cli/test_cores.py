"""Which cores each service gets."""

import pytest
from allroads.cli.cores import place

THREADS = {"slm": 1, "llm": 1, "router": 1, "gateway": 1}


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        ([], [[], [], [], []]),
        ([3], [[], [], [], []]),
        ([0, 1], [[0], [1], [1], [1]]),
        ([4, 5, 6], [[4], [5], [6], [6]]),
        ([0, 1, 2, 3, 8, 9], [[0], [1], [2], [3, 8, 9]]),
    ],
)
def test_each_has_its_own_as_far_as_they_go(cores: list[int], expected: list[list[int]]) -> None:
    assert place(THREADS, cores) == dict(zip(THREADS, expected, strict=True))


def test_a_middle_tier_has_its_own_too() -> None:
    threads = {"slm": 1, "mlm": 2, "llm": 2, "router": 1, "gateway": 1}
    assert list(place(threads, range(8)).values()) == [[0], [1, 2], [3, 4], [5], [6, 7]]
    assert list(place(threads, range(4)).values()) == [[0], [1, 2], [3], [3], [3]]


def test_as_many_as_it_has_threads() -> None:
    assert place({"slm": 1, "llm": 4, "router": 1, "gateway": 1}, range(8)) == {
        "slm": [0], "llm": [1, 2, 3, 4], "router": [5], "gateway": [6, 7],
    }  # fmt: skip
    assert place(THREADS | {"slm": 4, "llm": 8}, [0, 1]) == {name: [] for name in THREADS}

"""The line is fair between keys, whoever comes and leaves, and its accounts are right."""

from collections import Counter, defaultdict

import pytest
from allroads.gateway.admission.fair_queue import FairQueue
from hypothesis import given, settings
from hypothesis import strategies as st

KEYS = "abcde"
OPERATIONS = st.lists(
    st.one_of(
        st.sampled_from(KEYS),
        st.just("start"),
        st.integers(min_value=0, max_value=30),
    ),
    max_size=120,
)
"""A key's request comes, one starts, or the one of that number (of those that wait) leaves."""


@settings(deadline=None)
@given(OPERATIONS)
def test_each_start_is_within_its_bounds(operations: list[str | int]) -> None:
    """One that comes behind w of its key starts after those, and after w + 1 of each other key at most."""
    queue: FairQueue[int] = FairQueue()
    waiting: dict[int, str] = {}
    num_own_ahead: dict[int, int] = {}
    started_meanwhile: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for number, operation in enumerate(operations):
        if isinstance(operation, int):
            if waiting:
                left = list(waiting)[operation % len(waiting)]
                assert queue.remove(left)
                assert not queue.remove(left)
                del waiting[left]
        elif operation == "start":
            if waiting:
                item = queue.pop()
                key = waiting.pop(item)
                assert not [other for other, its in waiting.items() if its == key and other < item]
                assert started_meanwhile[item][key] <= num_own_ahead[item]
                assert all(count <= num_own_ahead[item] + 1 for count in started_meanwhile[item].values())
                for other in waiting:
                    started_meanwhile[other][key] += 1
        else:
            num_own_ahead[number] = queue.num_of(operation)
            queue.push(operation, number)
            waiting[number] = operation
        counts = Counter(waiting.values())
        assert len(queue) == len(waiting)
        assert queue.num_keys == len(counts)
        assert queue.longest == max(counts.values(), default=0)
        assert {key: queue.num_of(key) for key in KEYS} == {key: counts[key] for key in KEYS}
        if waiting:
            newest = queue.newest_of_longest()
            assert counts[waiting[newest]] == queue.longest
            assert newest == max(item for item, key in waiting.items() if key == waiting[newest])


@settings(deadline=None)
@given(st.lists(st.sampled_from(KEYS), max_size=60), st.integers(min_value=0, max_value=20), st.sampled_from(KEYS))
def test_what_is_said_to_be_ahead_is_a_bound_and_exact_for_a_new_key(
    arrivals: list[str], num_started: int, newcomer: str
) -> None:
    queue: FairQueue[int] = FairQueue()
    for number, key in enumerate(arrivals):
        queue.push(key, number)
    for _ in range(min(num_started, len(queue))):
        queue.pop()
    is_new = not queue.num_of(newcomer)
    bound = queue.num_ahead(newcomer)
    queue.push(newcomer, -1)
    num_ahead = 0
    while queue.pop() != -1:
        num_ahead += 1
    assert num_ahead <= bound
    assert num_ahead == bound or not is_new


def test_a_thousand_of_one_key_hold_up_another_by_one_start() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(1000):
        queue.push("many", f"many {number}")
    assert queue.pop() == "many 0"
    queue.push("one", "one")
    assert [queue.pop(), queue.pop(), queue.pop()] == ["many 1", "one", "many 2"]


def test_an_item_that_is_not_there_is_passed_over() -> None:
    queue: FairQueue[str] = FairQueue()
    assert not queue.remove("x")
    with pytest.raises(StopIteration):
        queue.pop()

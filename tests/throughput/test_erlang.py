"""Erlang C against closed forms and a textbook's figure."""

import pytest
from allroads.throughput.erlang import largest, queue_wait_s


def test_one_place_waits_as_m_m_1_does() -> None:
    # W = rho / (1 - rho) x service time.
    assert queue_wait_s(0.5, 1, 1.2) == pytest.approx(0.6 / 0.4 * 1.2)


def test_two_places_wait_as_m_m_2_does() -> None:
    # C = 2 rho^2 / (1 + rho), W = C s / (2 - a).
    rho = 0.75
    assert queue_wait_s(1.5, 2, 1.0) == pytest.approx(2 * rho**2 / (1 + rho) / (2 - 1.5))


def test_many_places_from_their_definition() -> None:
    offered, places = 10.0, 14
    terms = [1.0]
    for number in range(1, places + 1):
        terms.append(terms[-1] * offered / number)
    last = terms[-1] * places / (places - offered)
    assert queue_wait_s(5.0, places, 2.0) == pytest.approx(last / (sum(terms[:-1]) + last) * 2.0 / (places - offered))


def test_more_than_can_be_served_waits_without_end() -> None:
    assert queue_wait_s(2.0, 2, 1.0) == float("inf")


def test_thousands_of_places_are_no_trouble() -> None:
    assert 0.0 < queue_wait_s(4000.0, 4096, 1.0) < 0.01
    assert queue_wait_s(1.0, 4096, 1.0) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("bound", [0, 1, 6, 7])
def test_the_largest_number_for_which_it_holds(bound: int) -> None:
    assert largest(7, lambda number: number <= bound) == bound

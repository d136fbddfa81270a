"""The published chain gives the published figures, closed forms, and refuses what it cannot solve."""

from typing import Any

import pytest
from allroads.throughput.phases import Phases
from allroads.throughput.published import published_throughput
from allroads.throughput.setting import Setting, StepCurve, Tier
from allroads.throughput.simulate import simulate

P, L0, L1 = 0.35, 6.0e-3, 27.9e-3
MOVES, COMMITS = [[1 - P, P], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]
CELLS = {
    (2, 1): 99.0,
    (2, 2): 110.3,
    (3, 1): 142.3,
    (3, 2): 158.1,
    (3, 3): 151.9,
    (4, 1): 187.2,
    (4, 2): 195.4,
    (4, 3): 207.9,
    (4, 4): 190.7,
}
"""Token/s that the paper prints, by requests and threshold. The last digit of (4, 3) is cut off there: 207.954."""


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_it_gives_what_is_printed(cell: tuple[int, int]) -> None:
    num_requests, threshold = cell
    found = published_throughput(MOVES, COMMITS, [L0, L1], [1, threshold], num_requests)
    assert found == pytest.approx(CELLS[cell], abs=0.1)


def test_one_request_takes_its_steps_one_after_the_other() -> None:
    assert published_throughput(MOVES, COMMITS, [L0, L1], [1, 1], 1) == pytest.approx(1 / (L0 + P * L1))


def test_one_request_among_three_models() -> None:
    moves = [[0.6, 0.3, 0.1], [0.8, 0.0, 0.2], [1.0, 0.0, 0.0]]
    commits = [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [2.0, 0.0, 0.0]]
    # For each step at home there are so many on each other model.
    second, third = 0.3, 0.1 + 0.3 * 0.2
    tokens = 0.6 + second * 0.8 + third * 2.0
    expected = tokens / (0.006 + second * 0.0279 + third * 0.05)
    assert published_throughput(moves, commits, [0.006, 0.0279, 0.05], [1, 1, 1], 1) == pytest.approx(expected)


def test_three_models_agree_with_a_simulation() -> None:
    curves = [StepCurve.affine(seconds) for seconds in (0.006, 0.024, 0.048)]
    home, *larger = (
        Tier(f"tier-{index}", curve, curve, Phases.geometric(ends))
        for index, (curve, ends) in enumerate(zip(curves, (0.3, 1.0, 1.0), strict=True))
    )
    setting = Setting(home, tuple(larger), tokens_per_cycle=1 / 0.3, shares=(2 / 3, 1 / 3))
    simulated = simulate(setting, 4, [2, 2], num_cycles=6_000)
    moves, commits = [[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]] * 3
    found = published_throughput(moves, commits, [0.006, 0.024, 0.048], [1, 2, 2], 4)
    assert abs(simulated.tokens_per_s - found) < 2 * simulated.half_width < 0.05 * found


def test_batches_that_go_to_and_fro() -> None:
    swap = [[0.0, 1.0], [1.0, 0.0]]
    found = published_throughput(swap, [[0.0, 1.0], [2.0, 0.0]], [0.002, 0.003], [3, 3], 3 + 2)
    assert found == pytest.approx(5 * 3 / 0.005)
    assert published_throughput(swap, swap, [0.002, 0.003], [1, 1], 1) == pytest.approx(2 / 0.005)


def test_batches_that_end_together_send_their_requests_on_together() -> None:
    # Whether they are together or apart, both have ended a step after each 2 ms.
    moves, commits = [[0.5, 0.5], [0.5, 0.5]], [[1.0, 1.0], [1.0, 1.0]]
    assert published_throughput(moves, commits, [0.002, 0.002], [1, 1], 2) == pytest.approx(2 / 0.002)


def test_a_finer_quantum_is_no_other_system() -> None:
    coarse = published_throughput(MOVES, COMMITS, [0.006, 0.028], [1, 2], 3, quantum_s=2e-3)
    fine = published_throughput(MOVES, COMMITS, [0.006, 0.028], [1, 2], 3, quantum_s=1e-5)
    assert coarse == pytest.approx(fine)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"thresholds": [2, 3]}, "wait for ever"),
        ({"thresholds": [1, 0]}, "from 1 on"),
        ({"thresholds": [1]}, "2 numbers"),
        ({"num_requests": 0}, "at least 1"),
        ({"moves": [[0.5, 0.4], [1.0, 0.0]]}, "sum to 1"),
        ({"moves": [[1.5, -0.5], [1.0, 0.0]]}, "negative"),
        ({"moves": [[float("nan"), 0.5], [1.0, 0.0]]}, "negative"),
        ({"moves": [[1.0]]}, "squares of one size"),
        ({"commits": [1.0, 1.0]}, "squares of one size"),
        ({"commits": [[1.0, float("inf")], [1.0, 0.0]]}, "finite"),
        ({"step_s": [0.006]}, "2 finite and positive"),
        ({"step_s": [0.006, 0.0]}, "2 finite and positive"),
        ({"step_s": [0.006, 1e-5]}, "quantum_s"),
        ({"quantum_s": 0.0}, "quantum_s"),
        ({"max_states": 5}, "more than 5 states"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "moves": MOVES,
        "commits": COMMITS,
        "step_s": [L0, L1],
        "thresholds": [1, 1],
        "num_requests": 3,
    }
    with pytest.raises(ValueError, match=message):
        published_throughput(**arguments | changes)


def test_models_that_are_never_left_again_are_refused() -> None:
    moves = [[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    with pytest.raises(ValueError, match="no one long run"):
        published_throughput(moves, moves, [0.001, 0.001, 0.002], [1, 1, 1], 1)

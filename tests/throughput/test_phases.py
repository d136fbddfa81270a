import numpy as np
import pytest
from allroads.throughput.phases import Phases


def test_a_coin_a_budget_and_counts() -> None:
    assert Phases.geometric(0.25).mean == pytest.approx(4.0)
    assert Phases.fixed(5).mean == pytest.approx(5.0)
    assert Phases.of_counts([3, 0, 1]).mean == pytest.approx((3 * 1 + 1 * 3) / 4)
    # Counts that stop early, and one that is certain.
    assert Phases.of_counts([2, 0, 0]).num_phases == 1
    assert Phases.geometric(1.0).mean == pytest.approx(1.0)


def test_what_one_finds_at_a_random_step() -> None:
    # A stay of three steps is in each of its phases for a third of them.
    assert np.allclose(Phases.fixed(3).age, 1 / 3)
    assert np.allclose(Phases.fixed(3).ends, [0, 0, 1])


def test_counts_come_back_as_a_distribution() -> None:
    counts = np.array([5.0, 1.0, 0.0, 4.0])
    phases = Phases.of_counts(counts.tolist())
    left, found = phases.start_row, []
    for _ in counts:
        found.append(float(left @ phases.ends))
        left = left @ phases.matrix
    assert np.allclose(found, counts / counts.sum())


@pytest.mark.parametrize("ends", [0.0, -0.1, 1.1, float("nan")])
def test_a_probability_out_of_range_is_refused(ends: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        Phases.geometric(ends)


def test_what_is_no_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one stay"):
        Phases.of_counts([0.0, 0.0])
    with pytest.raises(ValueError, match="moves"):
        Phases((1.0,), ((1.5,),))
    with pytest.raises(ValueError, match="let every stay end"):
        Phases((1.0,), ((1.0,),))
    with pytest.raises(ValueError, match="distribution"):
        Phases((0.5,), ((0.5,),))

"""What the home gathers for the model of the mesh's throughput."""

import pytest
from allroads.cuda.launch_counts import LaunchCounts
from allroads.engine.sampling import SamplingParams
from allroads.engine.sequence import Sequence
from allroads.mesh.regions import boot_id
from allroads.mesh.wire import model_pb2
from allroads.model.step_clock import Arrival, StepClock
from allroads.policies.policy import RequestView
from allroads.policies.r2r import R2R
from allroads.slm.reports import Reports
from allroads.slm.request import Request

MS = 1_000_000


class Mesh:
    """Reports of a home with one larger tier, by a clock of our own."""

    def __init__(self) -> None:
        self.now_ns = 1000 * MS
        self.clock = StepClock(lambda: self.now_ns)
        self.steps = LaunchCounts()
        self.reports = Reports(2, self.steps, lambda: self.now_ns)

    def step(self, took_ms: int, *, num_rows: int = 1, num_positions: int = 1) -> None:
        """A turn of the home with a step, which begins now."""
        self.clock.begin([Arrival(arrived_ns=self.now_ns)])
        self.now_ns += took_ms * MS
        self.end(num_rows, num_positions)

    def end(self, num_rows: int = 0, num_positions: int = 0) -> None:
        self.clock.end(is_busy=False)
        if num_rows:
            self.reports.stepped(self.clock, num_rows, num_positions)
        self.reports.sent(self.clock.ended_ns)

    def tell(self, *steps: tuple[int, int], boot: str | None = None, **counts: int) -> None:
        """The larger tier tells of steps: how many ms ago each began, and how many it took."""
        self.reports.take_steps(
            1,
            model_pb2.StepReport(
                num_rows=[2] * len(steps),
                num_positions=[7] * len(steps),
                started_ns=[self.now_ns - ago_ms * MS for ago_ms, _ in steps],
                step_us=[1000 * took_ms for _, took_ms in steps],
                boot_id=boot_id() if boot is None else boot,
                **counts,
            ),
        )

    def later(self) -> list[model_pb2.TierReport]:
        """What is told when all steps are old enough."""
        self.now_ns += 250 * MS
        return self.reports.take(num_requests=3)


@pytest.fixture
def mesh() -> Mesh:
    return Mesh()


def _request() -> Request:
    return Request(
        stream_id=1,
        sequence_id=1,
        number=1,
        request_id="",
        traceparent="",
        sequence=Sequence([5, 6, 7], 64, SamplingParams(temperature=0.0), 2),
        policy=R2R(),
        view=RequestView(seed=0, parameters={"threshold": (0.5,)}, max_tokens=60),
        reach=frozenset({0, 1}),
        length=2,
        stop_token_ids=frozenset(),
        visited=1,
    )


def test_steps_are_told_with_what_others_did_meanwhile(mesh: Mesh) -> None:
    mesh.step(10, num_rows=3, num_positions=40)
    mesh.step(10)
    # One that took the last 5 ms of the first step and all of the second, but for its last ms.
    mesh.tell((15, 14))
    home, large = mesh.later()
    assert (list(home.num_rows), list(home.num_positions)) == ([3, 1], [40, 1])
    assert list(home.step_us) == [10_000, 10_000]
    assert list(home.overlap) == pytest.approx([0.5, 0.9])
    assert (list(large.num_rows), list(large.num_positions), list(large.step_us)) == ([2], [7], [14_000])
    assert list(large.overlap) == [1.0]
    assert home.num_requests == 3
    assert not mesh.later()[0].num_rows, "they are told once"


def test_a_step_is_told_when_reports_of_others_can_have_come(mesh: Mesh) -> None:
    mesh.step(10)
    assert not mesh.reports.take(num_requests=0)[0].num_rows
    mesh.now_ns += 249 * MS
    assert not mesh.reports.take(num_requests=0)[0].num_rows
    mesh.tell((259, 10))
    mesh.now_ns += MS
    assert list(mesh.reports.take(num_requests=0)[0].overlap) == [1.0]


def test_where_steps_are_long_it_takes_longer(mesh: Mesh) -> None:
    mesh.tell((400, 400))
    mesh.step(10)
    assert not mesh.later()[0].num_rows
    mesh.now_ns += 550 * MS
    mesh.tell((810, 810))
    assert not mesh.later()[0].num_rows, "by now twice 810 ms are waited for"
    mesh.now_ns += 320 * MS
    assert list(mesh.later()[0].overlap) == [1.0]


@pytest.mark.parametrize(
    ("steps", "boot"),
    [
        ([(10, 10)], "another"),
        ([(10, 10)], ""),
        ([(5, 10)], None),
        ([(-5, 10)], None),
        ([(61_000, 10)], None),
        ([(10, 0)], None),
    ],
)
def test_times_that_are_not_of_this_hosts_clock_are_not_trusted(
    steps: list[tuple[int, int]], boot: str | None, mesh: Mesh
) -> None:
    mesh.step(10)
    mesh.tell(*steps, boot=boot)
    home, large = mesh.later()
    assert list(home.overlap) == [0.0]
    assert (list(large.step_us), list(large.overlap)) == ([1000 * took for _, took in steps], [0.0])


def test_a_report_whose_arrays_do_not_fit_is_taken_as_far_as_they_do(mesh: Mesh) -> None:
    mesh.reports.take_steps(1, model_pb2.StepReport(num_rows=[1, 2], num_positions=[1], step_us=[5, 5, 5]))
    mesh.reports.take_steps(1, model_pb2.StepReport(num_rows=[1, 2], num_positions=[1], started_ns=[0], step_us=[5]))
    for _ in range(3):
        mesh.tell(num_full_launches=2**32 - 1, there_us=2**64 - 1)
    large = mesh.later()[1]
    assert list(large.num_rows) == [1]
    assert (large.num_full_launches, large.there_us) == (2**32 - 1, 2**64 - 1)


def test_only_so_many_steps_wait(mesh: Mesh) -> None:
    for index in range(1100):
        mesh.step(1, num_rows=1 + index)
    home, _ = mesh.later()
    assert (len(home.num_rows), home.num_rows[-1]) == (1024, 1100)


def test_a_visit_is_measured_from_the_proposal_to_the_return(mesh: Mesh) -> None:
    request = _request()
    made = mesh.reports.mark
    mesh.step(10)
    assert mesh.reports.mark is not made
    mesh.now_ns += 3 * MS
    mesh.clock.begin([])
    request.turned_down = made
    mesh.reports.handed_off(request)
    mesh.now_ns += 1 * MS
    mesh.end()
    mesh.now_ns += 20 * MS
    assert request.trip is not None
    request.trip.is_confirmed = True
    mesh.reports.returned(request)
    mesh.reports.returned(request)
    mesh.tell(num_visits=1, num_visit_steps=1, there_us=18_000, waited_us=2_000, threshold=5, num_flushed_launches=1)
    large = mesh.later()[1]
    assert (large.num_visits, large.num_confirmed, large.num_visit_steps) == (1, 1, 1)
    # 3 ms until the hand-off was made, 1 until the turn was over.
    assert (large.decision_us, large.away_us) == (4_000, 20_000)
    assert (large.there_us, large.waited_us) == (18_000, 2_000)
    assert (large.threshold, large.num_flushed_launches) == (5, 1)
    again = mesh.later()[1]
    assert (again.num_visits, again.away_us, again.there_us, again.threshold) == (0, 0, 0, 5)


def test_a_proposal_that_is_turned_down_at_once_took_no_decision(mesh: Mesh) -> None:
    request = _request()
    mesh.clock.begin([])
    mesh.now_ns += 10 * MS
    request.turned_down = mesh.reports.mark
    mesh.reports.handed_off(request)
    mesh.now_ns += 1 * MS
    mesh.end(num_rows=1, num_positions=1)
    mesh.now_ns += 2 * MS
    mesh.reports.returned(request)
    large = mesh.later()[1]
    assert (large.num_visits, large.num_confirmed, large.decision_us, large.away_us) == (1, 0, 0, 2_000)


def test_what_is_cleared_is_not_told(mesh: Mesh) -> None:
    mesh.step(10)
    mesh.tell((10, 10), num_full_launches=3)
    mesh.reports.committed(1)
    mesh.reports.clear()
    mesh.reports.committed(0)
    home, large = mesh.later()
    assert (home.num_tokens, large.num_tokens) == (1, 0)
    assert not home.num_rows
    assert not large.num_rows
    assert large.num_full_launches == 0


def test_how_steps_were_launched_is_told_once_by_each_tier(mesh: Mesh) -> None:
    mesh.steps.num_replayed += 5
    mesh.steps.num_eager["shape"] += 2
    mesh.steps.num_eager["not recorded"] += 1
    mesh.tell(num_replayed_steps=4, num_direct_steps=6)
    for is_replayed in (True, False, True):
        mesh.reports.scored(is_replayed=is_replayed)
    home, tier = mesh.later()
    assert (home.num_replayed_steps, home.num_direct_steps) == (5, 3)
    assert (home.num_replayed_scorings, home.num_direct_scorings) == (2, 1)
    assert (tier.num_replayed_steps, tier.num_direct_steps) == (4, 6)
    mesh.steps.num_replayed += 1
    home, tier = mesh.later()
    assert (home.num_replayed_steps, home.num_direct_steps) == (1, 0)
    assert (home.num_replayed_scorings, home.num_direct_scorings) == (0, 0)
    assert (tier.num_replayed_steps, tier.num_direct_steps) == (0, 0)

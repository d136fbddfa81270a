"""When a step waits for company, and that it never waits for long (C40)."""

from collections import deque

import pytest
from allroads.engine.sampling import SamplingParams
from allroads.engine.sequence import Sequence, State
from allroads.policies.policy import RequestView
from allroads.policies.r2r import R2R
from allroads.slm.launch import LONGEST_HOLD_S, Launch
from allroads.slm.request import Place, Proposal, Request
from allroads.slm.table import RequestTable


def _request(number: int, *, num_unjudged: int, state: State) -> Request:
    tokens = [5] * (4 + num_unjudged)
    sequence = Sequence(tokens, 64, SamplingParams(temperature=0.0), 4, state=state, num_computed=len(tokens) - 1)
    return Request(
        stream_id=1,
        sequence_id=number,
        number=number,
        request_id="",
        traceparent="",
        sequence=sequence,
        policy=R2R(),
        view=RequestView(seed=0, parameters={"threshold": (0.5,)}, max_tokens=60),
        reach=frozenset({0, 1}),
        length=4,
        stop_token_ids=frozenset(),
        place=Place.HOME,
        suffix=deque(Proposal() for _ in range(num_unjudged)),
    )


def _table(*, ready: int, blocked: int) -> RequestTable:
    table = RequestTable()
    for number in range(ready):
        table.add(_request(number, num_unjudged=1, state=State.RUNNING))
    for number in range(ready, ready + blocked):
        table.add(_request(number, num_unjudged=2, state=State.PENDING))
    return table


@pytest.mark.parametrize(("ready", "blocked"), [(0, 0), (1, 0), (8, 0), (4, 4), (5, 3), (0, 6)])
def test_nobody_waits_for_a_minority(ready: int, blocked: int) -> None:
    assert Launch(max_unjudged=1).wait_s(_table(ready=ready, blocked=blocked)) == 0


def test_a_minority_waits_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("allroads.slm.launch.time.monotonic", lambda: now_s)
    decision, table = Launch(max_unjudged=1), _table(ready=1, blocked=3)
    assert decision.wait_s(table) == pytest.approx(LONGEST_HOLD_S)
    now_s += 0.6 * LONGEST_HOLD_S
    assert decision.wait_s(table) == pytest.approx(0.4 * LONGEST_HOLD_S)
    now_s += 0.6 * LONGEST_HOLD_S
    assert decision.wait_s(table) == 0
    # The step was launched: the next hold counts from anew.
    assert decision.wait_s(table) == pytest.approx(LONGEST_HOLD_S)

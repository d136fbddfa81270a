"""How a mesh that is busy, gone, or in the wrong place is met."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from allroads.answer_scoring import AnswerScorer
from allroads.errors import InvalidArgument, Unavailable
from allroads.evaluation.answers import Answer, AnswerLog
from allroads.evaluation.arms import SLM, RunSettings
from allroads.evaluation.figures import throughput
from allroads.evaluation.measuring import Measuring
from allroads.evaluation.mesh_client import MeshClient
from allroads.problem_file import FileProblem

from ..doubles.rest_mesh import RestMesh

MESSAGES = ({"role": "user", "content": "Number 4"},)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []

    async def no_sleep(seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr("allroads.evaluation.mesh_client.asyncio.sleep", no_sleep)
    return taken


def replying(*replies: httpx.Response) -> Callable[[httpx.Request], httpx.Response]:
    waiting: Iterator[httpx.Response] = iter(replies)
    return lambda request: next(waiting)


def client(*replies: httpx.Response) -> MeshClient:
    return MeshClient("http://mesh/v1/", httpx.MockTransport(replying(*replies)))


def refusal(status: int, code: str = "", **headers: str) -> httpx.Response:
    error = {"message": "no", "type": "", "param": "routing.threshold", "code": code}
    return httpx.Response(status, json={"error": error}, headers=headers)


async def test_a_busy_mesh_is_asked_again_when_it_says(pauses: list[float]) -> None:
    replies = (
        refusal(429, **{"Retry-After": "3"}),
        refusal(503, **{"Retry-After": "nan"}),
        httpx.Response(200, json={}),
    )
    async with client(*replies) as mesh:
        assert (await mesh.chat("pair", MESSAGES, {})).body == {}
    assert pauses == [3.0, 0.5]


async def test_a_mesh_that_stays_away_is_told(pauses: list[float]) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with MeshClient("http://mesh", httpx.MockTransport(handle)) as mesh:
        with pytest.raises(Unavailable, match="is the mesh up"):
            await mesh.served()


async def test_what_the_mesh_refuses_ends_the_run_at_once(pauses: list[float]) -> None:
    async with client(refusal(400)) as mesh:
        with pytest.raises(InvalidArgument, match="the mesh refuses: no") as caught:
            await mesh.chat("pair", MESSAGES, {})
    assert (caught.value.field, pauses) == ("routing.threshold", [])


@pytest.mark.parametrize("body", [{}, {"data": []}, {"data": [{"id": "x"}]}, {"data": [{"id": "x", "allroads": None}]}])
async def test_another_server_is_no_mesh(body: object) -> None:
    async with client(httpx.Response(200, json=body)) as mesh:
        with pytest.raises(Unavailable, match="no allroads mesh"):
            await mesh.served()


async def test_a_problem_that_does_not_fit_counts_as_wrong(tmp_path: Path) -> None:
    card = RestMesh().transport().handler(httpx.Request("GET", "http://mesh/v1/models"))
    assert isinstance(card, httpx.Response)
    problem = FileProblem("1", MESSAGES, "4", "numeric")
    with AnswerLog(tmp_path) as log:
        async with client(card, refusal(400, "context_length_exceeded")) as mesh:
            settings = RunSettings()
            served = await mesh.served()
            measuring = Measuring(mesh, served, [problem], AnswerScorer(), log, settings, lambda arm: None)
            await measuring.measure([SLM])
        (answer,) = log.of(SLM.key, ["1"])
    assert (answer.finish, answer.right, answer.num_tokens) == ("error", False, 0)
    with AnswerLog(tmp_path) as again:
        assert again.of(SLM.key, ["1"]) == [answer]


def an_answer(started_s: float, ended_s: float, num_tokens: int) -> Answer:
    return Answer(
        arm="",
        problem="",
        text="",
        right=True,
        finish="stop",
        prompt_tokens=0,
        tokens={"slm": num_tokens},
        computed=None,
        scored=None,
        rejected=None,
        hand_offs=None,
        tiers=(0,) * num_tokens,
        degraded=False,
        started_s=started_s,
        ended_s=ended_s,
    )


def test_speed_counts_the_time_in_which_any_request_was_open() -> None:
    # From 0 to 3, a pause, and from 10 to 11: 4 s for 80 tokens.
    answers = [an_answer(0, 2, 20), an_answer(10, 11, 20), an_answer(1, 3, 20), an_answer(1, 2, 20)]
    assert throughput(answers) == pytest.approx(20)
    assert throughput([]) == 0

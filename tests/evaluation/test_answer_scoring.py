"""Scorers, the judge among them."""

import json

import httpx
import pytest
from allroads.answer_scoring import AnswerScorer, read_verdict
from allroads.errors import InvalidArgument, StartupError, Unavailable
from allroads.judge_endpoint import EndpointSettings, JudgeEndpoint
from allroads.problem_file import FileProblem, ScorerName

QUESTION = ({"role": "user", "content": "How much is 2 + 2?"},)


def problem(scorer: ScorerName, answer: str, tolerance: float = 0.0) -> FileProblem:
    return FileProblem("1", QUESTION, answer, scorer, tolerance)


@pytest.mark.parametrize(
    ("case", "text", "right"),
    [
        (problem("exact", "four  apples"), " four\napples ", True),
        (problem("exact", "four"), "Four", False),
        (problem("exact", "4"), "<think>5? no</think> 4", True),
        (problem("numeric", "1,000"), "That makes 1000.0 in all.", True),
        (problem("numeric", "4"), "4 or 5", False),
        (problem("numeric", "4"), "<think>4</think> I do not know", False),
        (problem("numeric", "0.33", 0.01), "0.335", True),
        (problem("numeric", "0.33", 0.01), "0.345", False),
        (problem("regex", r"\bfou?r\b"), "it is for", True),
        (problem("regex", r"^four$"), "it is four", False),
    ],
)
async def test_local_scorers(case: FileProblem, text: str, right: bool) -> None:
    assert await AnswerScorer().is_right(case, text) is right


def endpoint(*replies: httpx.Response) -> tuple[JudgeEndpoint, list[httpx.Request]]:
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return replies[len(requests) - 1]

    settings = EndpointSettings("http://judge/v1/", "wise")
    return JudgeEndpoint(settings, httpx.MockTransport(handle)), requests


def verdict(text: str) -> httpx.Response:
    return httpx.Response(200, json={"choices": [{"message": {"content": text}}]})


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("CORRECT", True),
        ("Incorrect.", False),
        ("<think>CORRECT?</think> INCORRECT", False),
        ("Verdict: correct, not incorrect", True),
        ("I cannot say", None),
        ("", None),
    ],
)
async def test_a_judge_is_asked_with_question_reference_and_answer(reply: str, right: bool | None) -> None:
    judge, requests = endpoint(verdict(reply))
    async with judge:
        assert await AnswerScorer(judge).is_right(problem("judge", "4"), "<think>hm</think>It is four.") is right
    (request,) = requests
    assert request.url == "http://judge/v1/chat/completions"
    body = json.loads(request.content)
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("wise", 0, 16)
    case = body["messages"][-1]["content"]
    assert case.index("How much is 2 + 2?") < case.index("\n4\n") < case.index("It is four.")
    assert "hm" not in case
    assert read_verdict(reply) is right


async def test_a_judge_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, _ = endpoint(httpx.Response(401, text="no key"))
    async with judge:
        with pytest.raises(InvalidArgument, match="401: no key"):
            await judge.ask(QUESTION)


async def test_a_busy_judge_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def no_sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("allroads.judge_endpoint.asyncio.sleep", no_sleep)
    judge, requests = endpoint(httpx.Response(429), httpx.Response(503), verdict("CORRECT"))
    async with judge:
        assert await judge.ask(QUESTION) == "CORRECT"
    assert (len(requests), pauses) == (3, [1.0, 2.0])
    judge, requests = endpoint(*[httpx.Response(503)] * 6)
    async with judge:
        with pytest.raises(Unavailable, match="busy"):
            await judge.ask(QUESTION)


def test_a_judge_needs_its_key_and_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(StartupError, match="JUDGE_KEY is not set"):
        JudgeEndpoint(EndpointSettings("http://judge", "wise", "JUDGE_KEY"))
    with pytest.raises(StartupError, match="http://"):
        JudgeEndpoint(EndpointSettings("judge:80", "wise"))


def test_what_cannot_be_scored_is_refused() -> None:
    scorer = AnswerScorer()
    with pytest.raises(InvalidArgument, match="no answer"):
        scorer.check(FileProblem("1", QUESTION))
    with pytest.raises(InvalidArgument, match="--judge-url"):
        scorer.check(problem("judge", "4"))

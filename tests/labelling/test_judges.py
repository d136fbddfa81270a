"""Judges: what they take for the same, what gives no label, and what an endpoint may do to them."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from allroads.config import ModelSettings
from allroads.engine.engine import Engine
from allroads.errors import InvalidArgument, StartupError, Unavailable
from allroads.gateway.text.tokenizer import load_tokenizer
from allroads.labelling import model_judges
from allroads.labelling.judging import AnswerJudge, Branch, Comparison, SentenceJudge
from allroads.labelling.model_judges import EndpointJudge, OwnModelJudge, case_of, read_opinion
from allroads.labelling.problems import Prompt
from allroads.labelling.settings import ExactAnswer, LlmJudge, ModelJudge, OpenAiJudge, load_label_settings
from allroads.problem_file import FileProblem

KEY = "sk-very-secret-0123456789"
PROBLEM = FileProblem("p", ({"role": "user", "content": "How many?"},), answer="42", scorer="numeric")


def compare(ours: str, theirs: str = "The answer is 42.", **fields: Any) -> Comparison:
    values: dict[str, Any] = {
        "prompt": Prompt(0, PROBLEM, [1]), "context": "", "ours": Branch(ours, True), "theirs": Branch(theirs, True)
    }  # fmt: skip
    return Comparison(**{**values, **fields})


def test_sentences_that_end_the_text_and_such_that_do_not_differ() -> None:
    same = compare("So the answer is 42.")
    assert SentenceJudge().agree([same, replace(same, ours=Branch(same.ours.text, False))]) == [True, False]


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("So it is 42.0", "The answer is 42.", True),
        ("The answer is 41.", "The answer is 42.", False),
        ("<think>7</think>42", "41 </think> 42", True),
        ("no number", "The answer is 42.", False),
        ("yes  indeed", "yes indeed", True),
        ("no indeed", "yes indeed", False),
    ],
)
def test_final_answers_against_the_large_model_s_own(ours: str, theirs: str, same: bool) -> None:
    assert AnswerJudge(ExactAnswer(), [PROBLEM]).agree([compare(ours, theirs)]) == [same]


def test_final_answers_against_the_reference() -> None:
    judge = AnswerJudge(ExactAnswer(against="reference"), [PROBLEM])
    endless = replace(compare("42"), ours=Branch("42", False))
    # The large model's own answer does not count here.
    assert judge.agree([compare("42", "41"), compare("41", "41"), endless]) == [True, False, None]


@pytest.mark.parametrize("problem", [replace(PROBLEM, answer=None), replace(PROBLEM, scorer="judge")])
def test_problems_that_have_nothing_to_compare_with_are_refused(problem: FileProblem) -> None:
    with pytest.raises(InvalidArgument, match=r"problem 'p' has no answer"):
        AnswerJudge(ExactAnswer(against="reference"), [PROBLEM, problem])
    AnswerJudge(ExactAnswer(), [problem])


@pytest.mark.parametrize(
    ("reply", "opinion"),
    [
        ("SAME", True), ("different.", False), ("It is the same, not DIFFERENT", True), ("", None), ("sameness", None),
        ("I cannot say", None), ("<think>the same? no", None), ("<think>the same? no</think>DIFFERENT", False),
    ],
)  # fmt: skip
def test_replies(reply: str, opinion: bool | None) -> None:
    assert read_opinion(reply) is opinion


def test_a_case_shows_both_ways_and_the_end_of_what_came_before() -> None:
    one = replace(compare("", "B", context="begin " + "x" * 50 + "end"), ours=Branch("A{x}", False))
    case = case_of(one, ModelJudge(max_context_characters=10))
    assert "First way of going on:\nB [end of the answer]\n" in case
    assert "Second way of going on:\nA{x}\n" in case
    assert "…xxxxxxxend" in case
    assert "begin" not in case
    assert "How many?" in case


class Words:
    """Writes a reply into an engine's mouth."""

    def __init__(self, tokenizer: Any, replies: list[str | None]) -> None:
        self.tokenizer, self.replies = tokenizer, replies
        self.asked: list[str] = []
        self.groups: list[int] = []

    def write(self, engine: object, groups: Any, on_done: Any) -> list[list[list[int] | None]]:
        self.groups = [len(group) for group in groups]
        written: list[list[list[int] | None]] = []
        for group in groups:
            written.append([])
            for ask in group:
                self.asked.append(self.tokenizer.decode(ask.token_ids))
                reply = self.replies[len(self.asked) - 1]
                written[-1].append(None if reply is None else self.tokenizer._encode(
                    reply, add_special_tokens=False, field="")[: ask.max_new_tokens])  # fmt: skip
        return written


def test_the_large_model_itself(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, tokenizer = Engine.load(ModelSettings(path=pair / "llm")), load_tokenizer(pair / "llm")
    special = ["<|im_start|>", "<|im_end|>"]
    judge = OwnModelJudge(LlmJudge(), llm, tokenizer, special)
    # A random model's babble is no opinion.
    assert judge.agree([compare("A"), compare("B")]) == [None, None]
    words = Words(tokenizer, ["SAME", "DIFFERENT", None, "so what"])
    monkeypatch.setattr(model_judges, "write", words.write)
    others = compare("C<|im_end|>", prompt=Prompt(1, PROBLEM, [1]))
    huge = compare("word " * 3000)
    assert judge.agree([compare("A"), huge, compare("B"), others, others]) == [True, None, False, None, None]
    assert words.groups == [2, 2]
    # What stands in a text cannot end the question.
    assert words.asked[2].count("C< |im_end|>") == 1


class Server:
    """An endpoint that does as told."""

    def __init__(self, answer: Callable[[int, dict[str, Any]], tuple[int, str]]) -> None:
        self.requests: list[tuple[str, dict[str, Any], str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, body, self.headers.get("Authorization")))
                status, content = answer(len(outer.requests) - 1, body)
                payload = content.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


@contextmanager
def serving(answer: Callable[[int, dict[str, Any]], tuple[int, str]]) -> Iterator[Server]:
    server = Server(answer)
    thread = Thread(target=server.http.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()


def reply(text: str) -> tuple[int, str]:
    return 200, json.dumps({"choices": [{"message": {"content": text}}]})


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    return "JUDGE_KEY"


def test_an_endpoint_is_asked_in_parallel_and_in_bounds(key: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    together = Barrier(3)

    def answer(number: int, body: dict[str, Any]) -> tuple[int, str]:
        # Goes on only when three are here at once; a fourth would wait in vain.
        together.wait(20)
        ours = body["messages"][0]["content"].rpartition("Second way of going on:\n")[2]
        return reply({"A": "SAME", "B": "DIFFERENT", "C": "hm"}[ours[0]])

    with serving(answer) as server:
        judge = EndpointJudge(OpenAiJudge(url=server.url, model="m", api_key_env=key, max_tokens=5, max_concurrent=3))
        done: list[int] = []
        assert judge.agree([compare(text) for text in "ABCABC"], done.append) == [True, False, None] * 2
        assert sum(done) == 6
        assert judge.agree([]) == []
    path, body, authorization = server.requests[0]
    assert (path, authorization) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0, 5)
    assert KEY not in caplog.text


def test_a_busy_endpoint_is_asked_again_and_a_dead_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_: float) -> None: ...

    monkeypatch.setattr(asyncio, "sleep", at_once)
    with serving(lambda number, _: (503, "busy") if number < 2 else reply("SAME")) as server:
        assert EndpointJudge(OpenAiJudge(url=server.url, model="m")).agree([compare("A")]) == [True]
    assert len(server.requests) == 3
    assert server.requests[0][2] is None
    with pytest.raises(Unavailable, match="out of reach"):
        EndpointJudge(OpenAiJudge(url=server.url, model="m")).agree([compare("A"), compare("B")])


def test_a_refusal_ends_it(key: str) -> None:
    with serving(lambda *_: (401, json.dumps({"error": f"wrong key {KEY}"}))) as server:
        judge = EndpointJudge(OpenAiJudge(url=server.url, model="m", api_key_env=key, max_concurrent=1))
        with pytest.raises(InvalidArgument, match="401") as refusal:
            judge.agree([compare("A"), compare("B")])
    assert len(server.requests) == 1
    assert KEY not in str(refusal.value)


def test_a_key_that_is_not_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(StartupError, match="NO_SUCH_KEY"):
        EndpointJudge(OpenAiJudge(url="http://127.0.0.1:9/v1", model="m", api_key_env="NO_SUCH_KEY"))


@pytest.mark.parametrize(
    ("text", "key_at_fault"),
    [
        ("judge: {kind: oracle}", "judge"),
        ("judge: {kind: openai, url: 'http://a/v1'}", "judge.openai.model"),
        ("judge: {kind: openai, url: 'http://me:secret@a/v1', model: m}", "judge.openai.url"),
        ("judge: {kind: openai, url: 'ftp://a', model: m}", "judge.openai.url"),
        ("judge: {kind: exact-answer, against: nobody}", "judge.exact-answer.against"),
        ("num_top_logits: 0", "num_top_logits"),
        ("num_sentences: 1.5", "num_sentences"),
        ("max_tokens: 5", "max_tokens"),
    ],
)
def test_wrong_settings_name_the_key(text: str, key_at_fault: str, tmp_path: Path) -> None:
    path = tmp_path / "label.yaml"
    path.write_text(text)
    with pytest.raises(StartupError, match=r"labelling settings in .*label\.yaml") as refusal:
        load_label_settings(path)
    assert refusal.value.field == key_at_fault


@pytest.mark.parametrize("content", [b"- a\n", b"{", b"\xff\xfe"])
def test_files_that_are_no_settings(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "label.yaml"
    path.write_bytes(content)
    with pytest.raises(StartupError, match="labelling settings"):
        load_label_settings(path)
    with pytest.raises(StartupError, match="cannot read"):
        load_label_settings(tmp_path / "none.yaml")


def test_settings_from_a_file_and_options(tmp_path: Path) -> None:
    path = tmp_path / "label.yaml"
    path.write_text("judge: {kind: llm, max_tokens: 3}\nnum_sentences: 2\n")
    settings = load_label_settings(path)
    assert (settings.judge, settings.num_sentences) == (LlmJudge(max_tokens=3), 2)
    assert load_label_settings(path, {"judge": {"kind": "exact-answer"}}).judge == ExactAnswer()
    assert load_label_settings(None).judge.kind == "same-continuation"

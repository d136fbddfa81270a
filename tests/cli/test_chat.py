"""`allroads chat` as a process, against a scripted REST server."""

import json
import re
import signal
import subprocess

import pytest

from .commands import COMMAND, environment, run
from .ends import TIMEOUT_S
from .scripted_chat_server import Action, Reply, chat_server, chunk, finish

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}


def answer(reply: Reply) -> None:
    """`37 + 58 = 95.`, in which the LLM wrote the sum and a token before it."""
    reply.begin()
    for part in (
        ROLE,
        chunk("37 + 58", 0, 0, 0),
        chunk(" = 9", 0, 1),
        chunk("5", 1),
        chunk(".", 0),
        finish(slm=5, llm=2),
    ):
        reply.send(part)
    reply.send("[DONE]")


def test_an_answer_streams_with_the_llms_tokens_in_brackets_and_counts() -> None:
    with chat_server(answer) as server:
        result = run("chat", "--url", server.url, "How many?", NO_COLOR="1")
    assert (result.returncode, result.stdout) == (0, "37 + 58[ = 95].\n")
    assert result.stderr == "7 tokens: 5 by the SLM, 2 by the LLM (28.6%)\n"
    assert server.bodies == [
        {
            "model": "pair",
            "messages": [{"role": "user", "content": "How many?"}],
            "stream": True,
            "temperature": 0.0,
            "routing": {"report_tokens": True},
        }
    ]


def test_the_llms_tokens_have_another_colour() -> None:
    with chat_server(answer) as server:
        result = run("chat", "--url", server.url, "How many?", FORCE_COLOR="1", TERM="xterm")
    assert result.stdout == "37 + 58\x1b[1;35m = 9\x1b[0m\x1b[1;35m5\x1b[0m.\n"


def answer_of_three(reply: Reply) -> None:
    """`a b c d`, written by the small, the middle, the large and the small model."""
    reply.begin()
    for part in (ROLE, chunk("a", 0), chunk(" b", 1), chunk(" c", 1, 2), chunk(" d", 0), finish(slm=2, mlm=1, llm=2)):
        reply.send(part)
    reply.send("[DONE]")


def test_each_larger_model_has_brackets_and_a_share_of_its_own() -> None:
    with chat_server(answer_of_three) as server:
        result = run("chat", "--url", server.url, "x", NO_COLOR="1")
    assert (result.returncode, result.stdout) == (0, "a[ b][ c] d\n")
    assert result.stderr == "5 tokens: 2 by the SLM, 1 by mlm (20.0%), 2 by the LLM (40.0%)\n"


def test_each_larger_model_has_a_colour_of_its_own_which_the_counts_tell() -> None:
    with chat_server(answer_of_three) as server:
        result = run("chat", "--url", server.url, "x", FORCE_COLOR="1", TERM="xterm")
    assert result.stdout == "a\x1b[1;35m b\x1b[0m\x1b[1;36m c\x1b[0m d\n"
    assert re.search(r"\x1b\[[\d;]*35m1 by mlm\x1b", result.stderr)
    assert re.search(r"\x1b\[[\d;]*36m2 by the LLM\x1b", result.stderr)


def test_a_pipe_gets_the_text_alone() -> None:
    with chat_server(answer) as server:
        result = run("chat", "--url", server.url, "How many?")
    assert result.stdout == "37 + 58 = 95.\n"


def test_options_travel() -> None:
    routing = ["--policy", "random", "--share", "0.25", "--threshold", "0.4"]
    options = ["--model", "m", "--temperature", "0.7", "--max-tokens", "9", *routing]
    with chat_server(answer) as server:
        assert run("chat", "--url", server.url.removesuffix("/v1") + "/", *options, "x").returncode == 0
    (body,) = server.bodies
    assert body["routing"] == {"report_tokens": True, "policy": "random", "threshold": 0.4, "share": 0.25}
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.7, 9)


def test_held_back_text_belongs_to_the_token_that_held_it_back() -> None:
    def hold_back(reply: Reply) -> None:
        reply.begin()
        # A character of two tokens: the LLM wrote its first byte, the SLM its last.
        for part in (chunk("a", 0), chunk("", 1), chunk("é", 0), chunk("b", 0), finish(slm=3, llm=1, is_degraded=True)):
            reply.send(part)
        reply.send("[DONE]")

    with chat_server(hold_back) as server:
        result = run("chat", "--url", server.url, "x", NO_COLOR="1")
    assert result.stdout == "a[é]b\n"
    assert "finished by the SLM alone" in result.stderr


def test_an_answer_cannot_steer_the_terminal() -> None:
    def steer(reply: Reply) -> None:
        reply.begin()
        reply.send(chunk("[red]\x1b[2J\r\tdone\n", 0))
        reply.send(finish("length", slm=1, llm=0))
        reply.send("[DONE]")

    with chat_server(steer) as server:
        result = run("chat", "--url", server.url, "x")
    assert result.stdout == "[red]\ufffd[2J\ufffd\tdone\n\n"
    assert "cut off at the token limit" in result.stderr


def _refuse(reply: Reply) -> None:
    reply.fail(400, json.dumps({"error": {"message": "routing.policy: no policy x", "type": "y"}}).encode())


def _overload(reply: Reply) -> None:
    reply.fail(503, b"<html>")


def _fail_midway(reply: Reply) -> None:
    reply.begin()
    reply.send(chunk("To begin", 0))
    reply.send({"error": {"message": "a step failed"}})
    reply.send("[DONE]")


def _break_off(reply: Reply) -> None:
    reply.begin()
    reply.send(chunk("To begin", 0))


def _babble(reply: Reply) -> None:
    reply.begin()
    reply.send("{")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (_refuse, "routing.policy: no policy x"),
        (_overload, "status 503"),
        (_fail_midway, "a step failed"),
        (_break_off, "the answer broke off"),
        (_babble, "not in OpenAI's form"),
    ],
)
def test_an_error_is_one_line(action: Action, message: str) -> None:
    with chat_server(action) as server:
        result = run("chat", "--url", server.url, "x")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_no_mesh_says_how_to_start_one() -> None:
    with chat_server() as server:
        url = server.url
    result = run("chat", "--url", url, "x")
    assert result.returncode == 1
    assert "start a mesh with `allroads up`" in result.stderr


def test_a_conversation_goes_on_after_an_error_and_remembers_answers() -> None:
    with chat_server(answer, _refuse, answer) as server:
        result = run("chat", "--url", server.url, stdin="one\n\ntwo\nthree\n")
    assert result.returncode == 0
    assert result.stdout == "37 + 58 = 95.\n" * 2
    assert "no policy x" in result.stderr
    said = [(message["role"], message["content"]) for message in server.bodies[-1]["messages"]]
    assert said == [("user", "one"), ("assistant", "37 + 58 = 95."), ("user", "three")]


def test_ctrl_c_ends_the_answer_and_not_the_conversation() -> None:
    def never_end(reply: Reply) -> None:
        reply.begin()
        reply.send(chunk("on and on\n", 0))
        reply.until_client_is_gone()
        server.client_gone.set()

    with chat_server(never_end, answer) as server:
        command = [*COMMAND, "chat", "--url", server.url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("one\n")
            process.stdin.flush()
            assert process.stdout.readline() == "on and on\n"
            process.send_signal(signal.SIGINT)
            assert server.client_gone.wait(TIMEOUT_S)
            output, _ = process.communicate("two\n", timeout=TIMEOUT_S)
        assert (process.returncode, output) == (0, "\n37 + 58 = 95.\n")

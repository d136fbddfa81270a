"""`allroads plan`: options and files in, tables, JSON and a picture out; refusals that name what is wrong."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from allroads.cli.live_setting import fetch_setting
from allroads.cli.main import app
from allroads.cli.step_times import read_step_times
from allroads.cli.throughput_options import SettingOptions, parse_change
from allroads.errors import AllroadsError, InvalidArgument, StartupError, Unavailable
from allroads.throughput.setting import Setting, StepCurve
from allroads.throughput.setting_json import setting_to_json
from typer.testing import CliRunner

PAIR = ("--slm-ms", "6.0", "--llm-ms", "27.9", "--share", "0.35", "--max-requests", "4")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def plan(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def plan_json(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan(*arguments, "--json"))
    return found


def test_one_request_of_the_published_pair_is_at_its_closed_form() -> None:
    found = plan_json(*PAIR)
    first = found["base"]["points"][0]
    assert first["num_requests"] == 1
    assert first["tokens_per_s"] == pytest.approx(1 / (0.006 + 0.35 * 0.0279))
    assert [point["num_requests"] for point in found["base"]["points"]] == [1, 2, 4]
    assert found["base"]["setting"]["tokens_per_request"] is None
    assert (found["base"]["load"], found["what_if"], found["changes"]) == (None, None, [])


def test_tables_tell_throughput_capacity_and_what_the_traffic_needs() -> None:
    shown = plan(*PAIR, "--answer-tokens", "500", "--rate", "2", "--gpus-per-replica", "2")
    for words in ("requests", "waits for", "gain", "capacity", "replicas", "GPUs", "wait before it", "63.4"):
        assert words in shown
    assert "replicas" not in plan(*PAIR)


def test_a_what_if_stands_beside_what_is() -> None:
    changes = ("--what-if", "share=0.1", "--what-if", "device-speed=2")
    shown = plan(*PAIR, *changes)
    assert "as it is" in shown
    assert "what if share=0.1, device-speed=2" in shown
    found = plan_json(*PAIR, *changes)
    assert found["changes"] == ["share=0.1", "device-speed=2"]
    assert found["what_if"]["points"][0]["tokens_per_s"] == pytest.approx(2 / (0.006 + 0.1 * 0.0279))


def test_the_picture_is_an_svg(tmp_path: Path) -> None:
    plan(*PAIR, "--plot", tmp_path / "plan.svg")
    assert "<svg" in (tmp_path / "plan.svg").read_text()
    with pytest.raises(StartupError, match="--plot"):
        plan(*PAIR, "--plot", tmp_path / "missing" / "plan.svg")


STEP_TIMES = """
slm: {alone: {1: 6.0, 64: 9.0}, co_running: {1: 7.5, 64: 12.0}}
llm: {alone: {32: 33.0, 1: 27.9}}
"""


def test_step_times_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "times.yaml"
    path.write_text(STEP_TIMES)
    setting = SettingOptions(step_times=path, share=0.25, visit_ends=0.5, max_ahead=3).setting()
    assert setting.home.co_running == StepCurve((1, 64), (0.0075, 0.012))
    assert setting.larger[0].alone == setting.larger[0].co_running
    assert setting.larger[0].alone.seconds == pytest.approx((0.0279, 0.033))
    assert (setting.tokens_per_cycle, setting.max_ahead) == (5.0, 3)
    assert plan_json("--step-times", path, "--share", "0.25", "--max-requests", "2")["base"]["points"]


def test_step_times_may_be_json_and_of_several_larger_tiers(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    alone = {"alone": {"1": 5.0}}
    path.write_text(json.dumps({"slm": alone, "mlm": {**alone, "share": 0.75}, "llm": {**alone, "share": 0.25}}))
    setting = read_step_times(path)
    assert [tier.name for tier in setting.larger] == ["mlm", "llm"]
    assert setting.shares == (0.75, 0.25)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[", "step_times"),
        ("7", "step_times"),
        ("slm: {alone: {1: 6.0}}", "step_times"),
        ("slm: {}\nllm: {alone: {1: 2}}", "slm.alone"),
        ("slm: {alone: {1: 6}, extra: 1}\nllm: {alone: {1: 2}}", "slm.extra"),
        ("slm: {alone: {1: -6}}\nllm: {alone: {1: 2}}", "slm.alone.1"),
        ("slm: {alone: {1: .nan}}\nllm: {alone: {1: 2}}", "slm.alone.1"),
        ("slm: {alone: {x: 6}}\nllm: {alone: {1: 2}}", "slm.alone.x"),
        ("slm: {alone: {2: 6}}\nllm: {alone: {1: 2}}", "slm.alone"),
        ("slm: {alone: {1: 6}}\nllm: {alone: {1: 2}, co_running: {4: 2}}", "llm.co_running"),
        ("slm: {alone: {1: 6}, share: 1}\nllm: {alone: {1: 2}}", "slm.share"),
        ("slm: {alone: {1: 6}}\nmlm: {alone: {1: 2}}\nllm: {alone: {1: 2}, share: 1}", "mlm.share"),
        ("slm: {alone: {1: 6}}\nmlm: {alone: {1: 2}, share: 1}\nllm: {alone: {1: 2}, share: 1}", "llm.share"),
    ],
)
def test_wrong_step_times_are_refused_by_their_field(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "times.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        read_step_times(path)
    assert caught.value.field == field


def test_rows_and_slow_down_of_simple_options() -> None:
    setting = SettingOptions(slm_ms=6.0, slm_row_ms=0.5, llm_ms=30.0, slow_down=1.5, share=0.5).setting()
    assert setting.home.alone.at(5) == pytest.approx(0.008)
    assert setting.home.co_running.at(5) == pytest.approx(0.012)
    assert setting.larger[0].alone.at(100) == pytest.approx(0.030)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((), "step_times"),
        (("--slm-ms", "6", "--share", "0.1"), "llm_ms"),
        (("--slm-ms", "6", "--llm-ms", "27"), "share"),
        ((*PAIR, "--url", "http://127.0.0.1:1"), "step_times"),
        ((*PAIR, "--share", "1.5"), "share"),
        ((*PAIR, "--what-if", "share"), "what_if"),
        ((*PAIR, "--what-if", "mlm-ms=1"), "mlm-ms"),
        ((*PAIR, "--rate", "2"), "answer_tokens"),
        ((*PAIR, "--rate", "nan", "--answer-tokens", "9"), "rate_per_s"),
        ((*PAIR, "--utilisation", "1.5"), "utilisation"),
        ((*PAIR, "--min-tokens-per-s", "100"), "min_tokens_per_s"),
        ((*PAIR, "--min-tokens-per-s", "60", "--what-if", "llm-ms=90"), "min_tokens_per_s"),
        (("--step-times", "missing.yaml", "--share", "0.1"), "step_times"),
    ],
)
def test_wrong_options_are_refused_by_their_field(arguments: tuple[str, ...], field: str) -> None:
    with pytest.raises(StartupError) as caught:
        plan(*arguments)
    assert caught.value.field == field


def test_a_what_if_that_cannot_keep_the_promise_is_named() -> None:
    with pytest.raises(StartupError, match=r"what if llm-ms=90: .* one request alone gets 26\.67 token/s"):
        plan(*PAIR, "--min-tokens-per-s", "60", "--what-if", "llm-ms=90")


def test_a_change_is_a_key_and_a_number() -> None:
    assert parse_change("llm-ms = 14") == ("llm-ms", 14.0)
    for text in ("llm-ms", "llm-ms=", "llm-ms=fast", "llm-ms=nan"):
        with pytest.raises(InvalidArgument, match="KEY=NUMBER"):
            parse_change(text)


@contextmanager
def gateway(status: int, body: str) -> Iterator[str]:
    """Answers `GET /v1/admission`; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v1/admission" else 404)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


CURVE = StepCurve((1, 8), (0.01, 0.02))
LIVE = Setting.routed(0.2, (CURVE, CURVE), (CURVE, CURVE), request_s=0.25)


@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
def test_a_live_profile_is_taken_from_the_gateway(suffix: str) -> None:
    with gateway(200, json.dumps({"setting": setting_to_json(LIVE), "num_requests": 3})) as url:
        assert fetch_setting(url + suffix) == LIVE


def test_options_stand_in_place_of_what_the_gateway_tells() -> None:
    with gateway(200, json.dumps({"setting": setting_to_json(LIVE)})) as url:
        setting = SettingOptions(url=url, share=0.1, answer_tokens=99).setting()
    assert setting.tokens_per_cycle == pytest.approx(10.0)
    assert (setting.tokens_per_request, setting.request_s) == (99.0, 0.25)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (404, "{}", Unavailable, "answers 404"),
        (200, '{"setting": null}', Unavailable, "measured nothing yet"),
        (200, "{}", InvalidArgument, "--url"),
        (200, "<html>", InvalidArgument, "--url"),
        (200, '{"setting": {}}', InvalidArgument, "setting.home is missing"),
    ],
)
def test_a_gateway_that_tells_no_profile(status: int, body: str, kind: type[AllroadsError], words: str) -> None:
    with gateway(status, body) as url, pytest.raises(kind, match=words):
        fetch_setting(url)


@pytest.mark.parametrize(
    ("url", "kind"),
    [("http://127.0.0.1:1", Unavailable), ("http://a:b", InvalidArgument), ("gateway", InvalidArgument)],
)
def test_a_gateway_that_is_not_there(url: str, kind: type[AllroadsError]) -> None:
    with pytest.raises(kind) as caught:
        fetch_setting(url)
    assert caught.value.field == "url"

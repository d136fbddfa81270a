"""Restart pauses, log lines, addresses: parts that need no process."""

import json
import logging
import shlex

import pytest
from allroads.cli.console import exit_code, one_line
from allroads.cli.endpoint import EXAMPLE_QUESTION, describe_endpoint
from allroads.cli.log_view import LogView
from allroads.cli.logs import CallbackHandler, EventFormatter, always
from allroads.cli.ports import join_address, split_address
from allroads.cli.restarts import Deaths, RestartPolicy
from allroads.cli.speakers import speaker_of, speaking_as
from allroads.config import MeshSettings
from allroads.errors import CheckpointError, Unavailable
from rich.console import Console
from rich.text import Text

from .mesh_of_scripts import NAMES


def test_pauses_double_up_to_a_limit_until_the_service_is_given_up() -> None:
    deaths = Deaths(RestartPolicy(max_deaths=6, window_s=60, first_pause_s=1, longest_pause_s=4))
    assert [deaths.record(now) for now in range(6)] == [1, 2, 4, 4, 4, None]


def test_deaths_before_the_window_do_not_count() -> None:
    deaths = Deaths(RestartPolicy(max_deaths=2, window_s=60, first_pause_s=1))
    assert [deaths.record(now) for now in (0, 60, 120, 179)] == [1, 1, 1, None]


def test_an_event_is_one_line_with_its_service() -> None:
    lines: list[tuple[str, str]] = []
    handler = CallbackHandler(always("slm"), lambda name, line: lines.append((name, line)))
    handler.setFormatter(EventFormatter(always("slm")))
    logger = logging.Logger("allroads.mesh.stream")
    logger.addHandler(handler)
    logger.info('llm: "lost"\nfor good')
    try:
        raise RuntimeError("no memory")
    except RuntimeError:
        logger.exception("step failed")
    (_, first), (name, second) = lines
    assert name == "slm"
    assert first.split(" ", 1)[1] == r'level=info service=slm logger=mesh.stream message="llm: \"lost\"\nfor good"'
    assert "\n" not in second
    assert "RuntimeError: no memory" in json.loads(second.partition("exception=")[2])


def test_where_services_share_a_process_each_task_speaks_for_its_own() -> None:
    def speaker(logger: str) -> str:
        return speaker_of(logging.LogRecord(f"allroads.{logger}", logging.INFO, "", 1, "x", None, None))

    assert speaking_as("gateway").run(speaker, "mesh.stream") == "gateway"
    loggers = ("slm.journeys", "llm.tier", "mesh.stream", "engine.thread", "cli.stop")
    assert [speaker(logger) for logger in loggers] == ["slm", "llm", "mesh", "mesh", "up"]


def test_a_service_cannot_steer_the_terminal() -> None:
    console = Console(color_system=None, width=80, soft_wrap=True)
    with console.capture() as capture:
        LogView(console, NAMES).show("slm", "[red]\x1b[2J")
    assert capture.get() == "slm     | [red]\ufffd[2J\n"


def test_prefixes_are_of_one_width_and_each_of_its_own_colour() -> None:
    middle = ("somewhat-larger", *(f"mlm-{number}" for number in range(5)))
    console = Console(color_system="standard", force_terminal=True, width=80, soft_wrap=True)
    view = LogView(console, ("llm", *middle, "router", "slm", "gateway"))
    with console.capture() as capture:
        for name in ("llm", *middle, "gateway"):
            view.show(name, "x")
    lines = [Text.from_ansi(line) for line in capture.get().splitlines()]
    assert {line.plain.index("|") for line in lines} == {len("somewhat-larger ")}
    assert len({str(line.spans[0].style) for line in lines}) == len(lines)


@pytest.mark.parametrize("address", [("127.0.0.1", 80), ("::1", 8000), ("localhost", 1)])
def test_addresses_come_back(address: tuple[str, int]) -> None:
    assert split_address(join_address(*address)) == address


def test_the_example_request_is_one_that_a_shell_takes() -> None:
    settings = MeshSettings(model_name='aya\'s "pair"')
    command = describe_endpoint(settings, 1.0).partition("curl ")[2].partition("\n\n")[0]
    body = json.loads(shlex.split(command)[-1])
    assert body["model"] == settings.model_name
    assert body["messages"][0]["content"] == EXAMPLE_QUESTION


def test_exit_codes() -> None:
    assert (exit_code(CheckpointError("x")), exit_code(Unavailable("x"))) == (2, 1)


def test_one_line() -> None:
    assert one_line("a\n  b\x1b[0m\tc ") == "a b [0m c"

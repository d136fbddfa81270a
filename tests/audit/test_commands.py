"""The commands as users run them."""

import json
from pathlib import Path

import pytest
from allroads.cli.main import app
from allroads.config import embedded_path
from allroads.errors import AllroadsError
from typer.testing import CliRunner

from ..cli.commands import run_fork
from .made_logs import World, decision, write

MALICE = "[bold]x[/]\x1b[31m\x07\u202e"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write(tmp_path / "decisions.jsonl", World().lines(40, seed=1))


def test_report_prints_and_writes(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    result = run_fork(
        "audit", "report", log, "--tokenizer", embedded_path("slm"), "--slm-parameters", "0.6", "--llm-parameters",
        "32", "--prices", "0.05,0.6", "--out", out,
    )  # fmt: skip
    assert (result.returncode, result.stderr.count("wrote")) == (0, 2), result.stderr
    for words in ("1,600 decisions", "r2r, threshold 0.4, audit", "position", "full formula", "false alarms"):
        assert words in result.stdout
    content = json.loads((out / "audit.json").read_text())
    share = content["groups"][0]["overall"]["routed"]["share"]
    assert f"{100 * share:.2f} %" in result.stdout
    assert f"{100 * share:.2f} %" in (out / "audit.html").read_text()


def test_sizes_come_from_a_mesh(log: Path, tmp_path: Path) -> None:
    config = tmp_path / "mesh.yaml"
    config.write_text("model_name: pair\n")
    result = run_fork("audit", "report", log, "--config", config)
    assert result.returncode == 0, result.stderr
    # 1.636 million parameters of the embedded large model.
    assert "0.001636" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report", "nowhere"), "no decision log nowhere"),
        (("report", "LOG", "--slm-parameters", "1"), "--llm-parameters both"),
        (("report", "LOG", "--prices", "1"), "--prices must be two prices"),
        (("report", "LOG", "--router", "nowhere"), "--router: cannot read"),
        (("report", "LOG", "--tokenizer", "nowhere"), "no tokenizer.json in nowhere"),
        (("compare", "LOG"), "the two sides must be"),
        (("compare", "LOG", "LOG", "--a", "r2r@x"), "a side is POLICY"),
        (("compare", "LOG", "--a", "r2r@0.4", "--b", "r2r@0.5"), "is of side B"),
        (("labels", "--queue", "no", "--dataset", "x", "--slm", "x", "--out", "y"), "`allroads audit review` makes it"),
    ],
)
def test_what_is_wrong_is_told(log: Path, arguments: tuple[str, ...], words: str) -> None:
    given = [str(log) if argument == "LOG" else argument for argument in arguments]
    result = CliRunner().invoke(app, ["audit", *given])
    assert isinstance(result.exception, AllroadsError)
    assert words in result.exception.message


def test_errors_are_a_line() -> None:
    result = run_fork("audit", "report", "nowhere")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("error: no decision log nowhere")


def test_compare_prints_what_it_means(tmp_path: Path, log: Path) -> None:
    other = write(tmp_path / "other.jsonl", World(needless=0.3).lines(40, seed=2))
    result = run_fork("audit", "compare", log, other, COLUMNS="200")
    assert result.returncode == 0, result.stderr
    assert "B is higher" in result.stdout
    assert "not enough data: about" in result.stdout


def test_a_log_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = write(tmp_path / "log", [decision(n, policy=MALICE) for n in range(3)])
    for arguments in (("report", path), ("report", path, "--out", tmp_path / "out"), ("compare", path, path)):
        result = run_fork("audit", *arguments)
        shown = result.stdout + result.stderr
        assert {character for character in shown if not character.isprintable()} <= {"\n"}
    assert "[bold]x[/]" in run_fork("audit", "report", path).stdout


def test_the_damaged_line_of_a_log_cannot_either(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"v":1,"\x1b[31m":1}\n')
    result = run_fork("audit", "report", path)
    assert result.returncode == 2
    assert "\x1b" not in result.stderr

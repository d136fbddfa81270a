"""`allroads simulate` shows both, and refuses what is wrong before it runs."""

import importlib.util
import json
from importlib.machinery import ModuleSpec

import pytest
import typer
from allroads.cli.simulate import simulate
from allroads.errors import StartupError
from typer.testing import CliRunner, Result

APP = typer.Typer()
APP.command()(simulate)
PAIR = ("--slm-ms", "6", "--llm-ms", "27.9", "--share", "0.35")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(APP, arguments, env={"COLUMNS": "120"})


def test_both_agree_with_the_published_figures() -> None:
    result = run(*PAIR, "--requests", "2", "--threshold", "2", "--cycles", "4000", "--json")
    assert result.exit_code == 0, result.output
    (pair,) = json.loads(result.stdout)["runs"]
    for way in ("predicted", "simulated"):
        assert (pair[way]["num_requests"], pair[way]["thresholds"]) == (2, [2])
        assert pair[way]["tokens_per_s"] == pytest.approx(110.3, rel=0.05)
    assert abs(pair["off"]) < 0.05
    assert pair["simulated"]["half_width"] > 0.0


def test_a_table_holds_both_for_each_number_of_requests() -> None:
    result = run(*PAIR, "--requests", "1", "--requests", "3", "--cycles", "200")
    assert result.exit_code == 0, result.output
    assert [result.stdout.count(word) for word in ("predicted", "simulated")] == [2, 2]
    assert "gap between tokens" in result.stdout


def test_the_seed_is_all_chance() -> None:
    one, same, other = (
        run(*PAIR, "--requests", "2", "--cycles", "100", "--json", "--seed", seed).stdout for seed in ("1", "1", "2")
    )
    assert one == same != other


def test_a_threshold_is_needed_for_each_larger_tier() -> None:
    result = run(*PAIR, "--threshold", "1", "--threshold", "1")
    assert isinstance(result.exception, StartupError)
    assert "--threshold once for each of: llm" in result.exception.message


def test_a_run_that_would_take_hours_is_refused() -> None:
    result = run("--slm-ms", "6", "--llm-ms", "27.9", "--share", "0.0001", "--cycles", "1000000")
    assert isinstance(result.exception, StartupError)
    assert "lower --cycles" in result.exception.message


def test_without_simpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "simpy" else find_spec(name, package)

    monkeypatch.setattr("allroads.cli.simulate.find_spec", without)
    result = run(*PAIR)
    assert isinstance(result.exception, StartupError)
    assert "pip install 'allroads[lifecycle]'" in result.exception.message

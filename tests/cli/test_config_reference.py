"""The page about every key of the configuration says what the classes say."""

from pathlib import Path

import pytest
from allroads.cli.config_reference import config_reference
from allroads.cli.show_config import show_config
from allroads.config import MeshSettings

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def keys(value: object, above: str = "") -> list[str]:
    """The keys of nested values; what is empty or no mapping is a value."""
    if not isinstance(value, dict) or not value:
        return [above.removeprefix(".")]
    return [key for name, below in value.items() for key in keys(below, f"{above}.{name}")]


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text() == config_reference(), "run: allroads config --reference > docs/configuration.md"


def test_every_key_is_there_with_its_variable_and_its_meaning() -> None:
    settings = {**MeshSettings().model_dump(mode="json"), "tls": {"ca": 1}, "middle": {"NAME": {"catch_up": 1}}}
    settings["gateway"] |= {"tls": {"certificate": 1}}
    settings["router"] |= {"scorers": {}}
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for key in keys(settings):
        (row,) = [row for row in rows if row.startswith(f"| `{key}`<br>`ALLROADS_{key.upper().replace('.', '__')}`")]
        _, _, kind, default, meaning, _ = (cell.strip() for cell in row.replace("\\|", "/").split("|"))
        assert kind, row
        assert default, row
        assert meaning, row


def test_ranges_choices_and_defaults_are_told() -> None:
    page = config_reference()
    for words in (
        "| whole number above 0 or `auto` | `32768` | Tokens that the KV pool holds",
        "| whole number from 0 to 65535 | `8000` |",
        "| number above 0 below 1 | none | Share of tokens",
        "| `on`, `off`, `audit`, `canary` | `on` |",
        "| `embedded:llm` |",
        "| must be given |",
        "| text from 1 to 200 characters | `allroads` |",
        "| list: number, number | none |",
        "| mapping: path |",
        "## `middle.NAME`",
        "## `gateway.limits`",
    ):
        assert words in page, words


def test_the_command_prints_the_page_whatever_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    show_config(Path("/no/such.yaml"), reference=True)
    assert capsys.readouterr().out == PAGE.read_text()

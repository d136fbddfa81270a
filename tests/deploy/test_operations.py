"""The page for operators names metrics, keys and log lines that there are."""

import re
from pathlib import Path

import allroads
import pytest
from allroads.cli.config_reference import config_reference
from prometheus_client.parser import text_string_to_metric_families

from ..gateway.conftest import gateway_over

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
_JOINED = re.compile(r'"\s*\n\s*f?"')
"""Where a text goes on in the next line of a source."""


def source() -> str:
    paths = Path(allroads.__file__).parent.rglob("*.py")
    return _JOINED.sub("", "\n".join(path.read_text() for path in paths))


async def test_metrics_are_there() -> None:
    async with gateway_over(lambda _: pytest.fail("nobody asks")) as served:
        text = (await served.http.get("/metrics")).text
    known = {name for family in text_string_to_metric_families(text) for name in (family.name, f"{family.name}_total")}
    named = set(re.findall(r"\ballroads_\w+", PAGE))
    assert len(named) > 20
    assert named - known == set()


def test_log_lines_are_there() -> None:
    lines = re.findall(r"log: `([^`]+)`", PAGE)
    assert len(lines) > 30
    text = source().replace('\\"', '"')
    assert [part for line in lines for part in line.split("…") if part not in text] == []


def test_keys_are_there() -> None:
    reference = config_reference()
    named = set(re.findall(r"`((?:slm|llm|router|gateway)\.[a-z_.]+?)(?::[^`]*)?`", PAGE))
    assert len(named) > 25
    assert {key for key in named if f"| `{key}`<br>" not in reference} == set()

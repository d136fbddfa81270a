"""Dashboard and alerts ask for metrics that there are."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ..gateway.conftest import gateway_over

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "allroads.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
_OURS = re.compile(r"\ballroads_\w+")
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def targets() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def variables() -> Iterator[str]:
    yield from (variable["query"]["query"] for variable in DASHBOARD["templating"]["list"])


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


@pytest.fixture
async def metrics() -> set[str]:
    """Every name that a gateway's scrape may have, also before anything was counted."""
    async with gateway_over(lambda _: pytest.fail("nobody asks")) as served:
        text = (await served.http.get("/metrics")).text
    return {
        family.name + suffix for family in text_string_to_metric_families(text) for suffix in _SUFFIXES[family.type]
    }


async def test_the_dashboard_shows_metrics_that_there_are(metrics: set[str]) -> None:
    asked = {name for expression in [*targets(), *variables()] for name in _OURS.findall(expression)}
    assert asked - metrics == set()


async def test_alerts_are_about_metrics_that_there_are(metrics: set[str]) -> None:
    asked = {name for rule in rules() for name in _OURS.findall(rule["expr"])}
    assert asked - metrics == set()


def test_every_alert_says_what_to_do() -> None:
    assert [rule["alert"] for rule in rules() if rule["annotations"].keys() != {"summary", "action"}] == []
    assert {rule["labels"]["severity"] for rule in rules()} == {"critical", "warning"}


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_dashboard_asks_the_data_source_that_is_provided() -> None:
    provided = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yaml").read_text())
    known = {source["uid"] for source in provided["datasources"]}
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if "datasource" in panel} == known


def test_prometheus_itself_understands_rules_and_expressions(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    expressions = [expr.replace("$__rate_interval", "1m").replace("$instance", ".*") for expr in targets()]
    recorded = [{"record": f"dashboard:{number}", "expr": expr} for number, expr in enumerate(expressions)]
    (tmp_path / "dashboard.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    for check in (
        ["rules", str(tmp_path / "dashboard.yaml")],
        ["config", str(DEPLOY / "prometheus" / "prometheus.yaml")],
    ):
        result = subprocess.run([promtool, "check", *check], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

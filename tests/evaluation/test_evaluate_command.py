"""`allroads evaluate` and `allroads roi` on the embedded pair, as a user runs them."""

import json
import subprocess
from pathlib import Path

import pytest
from allroads.embedded import embedded_path
from allroads.evaluation.report_file import Report, read_report
from allroads.router.checkpoint import load_router

from ..cli.commands import COMMAND, environment, run_fork

NUM_PROBLEMS = 12
_TIMEOUT_S = 280


def evaluate(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "evaluate", "--out", str(directory), "--num-problems", str(NUM_PROBLEMS), "--sweep=1", *options],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env=environment(OMP_NUM_THREADS="1"),
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("evaluation")
    result = evaluate(directory)
    assert result.returncode == 0, result.stderr
    assert "answered right" in result.stdout
    return directory


@pytest.fixture
def report(directory: Path) -> Report:
    return read_report(directory / "report.json")


pytestmark = pytest.mark.timeout(300)  # it starts two meshes, on a machine that may be busy


def test_routing_keeps_the_accuracy_at_a_small_share(report: Report) -> None:
    slm, llm, routed, control = (report.arm(role) for role in ("slm", "llm", "routed", "random"))
    assert (slm.llm_share.value, llm.llm_share.value) == (0, 1)
    assert 0 < routed.llm_share.value < 0.12
    assert routed.num_right > max(slm.num_right, control.num_right)
    assert routed.num_right >= 0.9 * llm.num_right
    assert slm.published_cost.value < routed.published_cost.value < 0.25 * llm.published_cost.value
    assert control.llm_share.value == pytest.approx(routed.llm_share.value, abs=0.03)
    (comparison,) = report.comparisons
    below = {(query.method, query.formula): query.difference for query in comparison.queries}
    assert below["confidence", "published"].low > 0
    assert below["random", "published"].low > 0


def test_a_lower_threshold_sends_more(report: Report) -> None:
    (point,) = report.arms_of("sweep")
    routed = report.arm("routed")
    is_lower = point.routing["threshold"] < report.run["mesh"]["defaults"]["r2r"]["threshold"]
    assert (point.llm_share.value > routed.llm_share.value) == is_lower


def test_scores_tell_where_the_models_differ(report: Report) -> None:
    (found,) = report.reliability
    assert found.policy == "r2r"
    assert found.bins[-1].differs.low > found.bins[0].differs.high
    router = load_router(embedded_path("router"), embedded_path("slm")).classifier
    assert report.router_parameters == {"r2r": router.num_parameters}


def test_who_wrote_what_is_shown(report: Report, directory: Path) -> None:
    assert len(report.shown) == 4
    assert {stretch.tier for answer in report.shown for stretch in answer.stretches} == {0, 1}
    text = "".join(stretch.text for stretch in report.shown[0].stretches)
    assert "answer is" in text
    page = (directory / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 4
    assert 'class="tier1"' in page


def test_money_is_reckoned_from_it(directory: Path) -> None:
    report = str(directory / "report.json")
    result = run_fork("roi", "--report", report, "--gpu-cost-per-hour", "slm=1,llm=8", "--json")
    assert result.returncode == 0, result.stderr
    ways = {way["name"]: way for way in json.loads(result.stdout)["ways"]}
    assert ways.keys() == {"slm", "llm", "r2r", "query routing like r2r"}
    assert ways["slm"]["per_answer"] < ways["llm"]["per_answer"]
    assert "saved" in run_fork("roi", "--report", report, "--gpu-cost-per-hour", "9").stdout
    wrong = run_fork("roi", "--report", report, "--gpu-cost-per-hour", "slm=1,llm=nan")
    assert (wrong.returncode, "gpu_per_hour.llm must be a number" in wrong.stderr) == (2, True)


def test_wrong_commands_say_what_is_wrong(tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"id": "1", "prompt": "x"}\n')
    missing = run_fork("evaluate", "--out", tmp_path / "out", "--problems", problems)
    assert missing.returncode == 2
    assert "line 1, answer: is missing" in missing.stderr
    nobody = run_fork("evaluate", "--out", tmp_path / "out", "--url", "http://127.0.0.1:9", "--config", "x.yaml")
    assert nobody.returncode == 2
    assert "not both" in nobody.stderr


def test_a_directory_of_another_configuration_is_refused(directory: Path) -> None:
    result = evaluate(directory, "--seed=1")
    assert result.returncode == 2
    assert "differs" in result.stderr

"""A whole evaluation of a scripted mesh: figures, resuming, refusals, and a page that escapes."""

import html
import json
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pytest
from allroads.answer_scoring import AnswerScorer
from allroads.errors import AllroadsError, InvalidArgument
from allroads.evaluation.answers import ANSWERS_FILE
from allroads.evaluation.arms import RunSettings, parse_policy
from allroads.evaluation.evaluating import Evaluation, build_report, measure
from allroads.evaluation.mesh_client import MeshClient
from allroads.evaluation.page import render_page
from allroads.evaluation.pictures import pareto_front
from allroads.evaluation.problem_set import ProblemSet, embedded, from_file
from allroads.evaluation.reliability import reliability
from allroads.evaluation.report_file import Report, read_report
from allroads.evaluation.sweep import Point, next_value
from allroads.problem_file import FileProblem

from ..doubles.rest_mesh import RestMesh

HOSTILE = '</div><script>alert("hi")</script><img src=x onerror=alert(1)>&amp;'


def problem(number: int) -> FileProblem:
    return FileProblem(f"p{number}", ({"role": "user", "content": f"Number {number}"},), str(number), "numeric")


def an_evaluation(directory: Path, *, sweep: int = 0, count: int = 20) -> Evaluation:
    return Evaluation(
        problems=ProblemSet(tuple(problem(number) for number in range(count)), {"file": "made up", "count": count}),
        settings=RunSettings(policies=("r2r",), sweep=sweep, concurrency=3, num_shown=2),
        directory=directory,
        router_parameters={"r2r": 50_000_000},
        command="allroads evaluate --out DIR",
    )


async def report_of(evaluation: Evaluation, mesh: RestMesh | None = None) -> Report:
    async with MeshClient("http://mesh", transport=(mesh or RestMesh()).transport()) as client:
        return build_report(evaluation, await measure(evaluation, client, AnswerScorer()))


async def test_figures_are_those_of_the_script(tmp_path: Path) -> None:
    report = await report_of(an_evaluation(tmp_path))
    slm, llm, routed = report.arm("slm"), report.arm("llm"), report.arm("routed")
    assert [arm.accuracy.value for arm in (slm, llm, routed)] == [0.5, 1.0, 0.8]
    assert [arm.llm_share.value for arm in (slm, llm, routed)] == pytest.approx([0, 1, 0.2])
    assert report.arm("random").llm_share.value == pytest.approx(0.2)
    # Eight tokens of 1B and two of 10B; 15 positions of each, and ten scored by 0.05B.
    assert routed.published_cost.value == pytest.approx(8 * 1 + 2 * 10)
    assert routed.activated.value == pytest.approx(2.8)
    assert routed.full_cost is not None
    assert routed.full_cost.value == pytest.approx(15 * 1 + 15 * 10 + 10 * 0.05)
    assert routed.shares_by_position == pytest.approx([1, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    (comparison,) = report.comparisons
    assert comparison.of_llm.value == pytest.approx(0.8)
    assert comparison.over_random is not None
    assert comparison.over_random.value == pytest.approx(0.3)
    queries = {(query.method, query.formula): query for query in comparison.queries}
    # 28 an answer: 10 for the small model's, and 18 % written anew at 100 each; all of them were wrong before.
    confident = queries["confidence", "published"]
    assert (confident.request_share, confident.accuracy.value) == pytest.approx((0.18, 0.68))
    assert confident.difference.value == pytest.approx(0.12)
    # At 90 more than the small model's 10 each, 20 % could be sent, of which half are gained.
    assert queries["random", "published"].accuracy.value == pytest.approx(0.5 + 0.2 * 0.5)
    assert queries["best", "published"].accuracy.value == pytest.approx(0.5 + 0.2)


async def test_a_sweep_goes_where_figures_jump(tmp_path: Path) -> None:
    report = await report_of(an_evaluation(tmp_path, sweep=3))
    shares = [arm.llm_share.value for arm in report.arms_of("sweep")]
    thresholds = [arm.routing["threshold"] for arm in report.arms_of("sweep")]
    # 0.8 is the policy's own, right at 0.8 with a share of 0.2. Gaps: 0.2 + 1 - sqrt(0.2) below, 0.3 + sqrt(0.2) above.
    assert thresholds[:2] == pytest.approx([0.2, 0.9])
    assert len(set(thresholds)) == 3
    assert shares == [pytest.approx(round(10 * (1 - threshold)) / 10) for threshold in thresholds]


async def test_an_interrupted_run_goes_on_and_comes_to_the_same(tmp_path: Path) -> None:
    whole = await report_of(an_evaluation(tmp_path / "whole"))
    broken = an_evaluation(tmp_path / "broken")
    mesh = RestMesh()
    mesh.fail_after = 37
    with pytest.raises(InvalidArgument, match="gone"):
        await report_of(broken, mesh)
    # As a crash in the middle of a line leaves it.
    with (broken.directory / ANSWERS_FILE).open("a") as file:
        file.write('{"arm": "[{')
    num_kept = len((broken.directory / ANSWERS_FILE).read_text().splitlines()) - 1
    assert 30 <= num_kept <= 37
    second = RestMesh()
    resumed = await report_of(broken, second)
    num_answers = len((tmp_path / "whole" / ANSWERS_FILE).read_text().splitlines())
    assert len(second.bodies) == num_answers - num_kept
    assert without_speeds(resumed) == without_speeds(whole)
    third = RestMesh()
    assert await report_of(broken, third) == resumed
    assert third.bodies == []


def without_speeds(report: Report) -> dict[str, object]:
    content = report.model_dump()
    for arm in content["arms"]:
        del arm["tokens_per_s"], arm["tokens_per_s_per_request"]
    return content


async def test_a_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    evaluation = an_evaluation(tmp_path)
    await report_of(evaluation)
    other = replace(evaluation, settings=replace(evaluation.settings, seed=1))
    with pytest.raises(InvalidArgument, match=r"settings\.seed differs") as caught:
        await report_of(other)
    assert caught.value.field == "out"
    (tmp_path / ANSWERS_FILE).write_text('{"v": 1}\n')
    with pytest.raises(InvalidArgument, match="line 1 is not an answer"):
        await report_of(evaluation)


async def test_the_page_escapes_what_models_and_files_say(tmp_path: Path) -> None:
    evaluation = an_evaluation(tmp_path)
    first, *rest = evaluation.problems.problems
    question = {"role": "user", "content": f"{HOSTILE} 0"}
    evaluation = replace(
        evaluation,
        problems=ProblemSet((replace(first, id=HOSTILE, messages=(question,)), *rest), {"file": HOSTILE}),
        command=HOSTILE,
    )
    report = await report_of(evaluation, RestMesh(lambda text: HOSTILE + text))
    page = render_page(report)
    assert html.escape(HOSTILE, quote=False).replace('"', "&#34;") in page
    assert "<script" not in page
    assert "<img src=x" not in page
    # Nothing is fetched: all addresses are data.
    assert {address[:5] for address in re.findall(r'(?:src|href)="([^"]*)"', page)} == {"data:"}
    pictures = [b64decode(data).decode() for data in re.findall(r"svg\+xml;base64,([^\"]+)", page)]
    assert len(pictures) == 3
    assert all("</svg>" in picture and "<script" not in picture for picture in pictures)
    assert "80.0 % of 20 problems are answered right" in page
    assert "20 problems are few" in page


async def test_the_report_is_read_back_and_a_damaged_one_refused(tmp_path: Path) -> None:
    report = await report_of(an_evaluation(tmp_path))
    path = tmp_path / "report.json"
    path.write_text(report.model_dump_json())
    assert read_report(path) == report
    content = json.loads(path.read_text())
    content["arms"][0]["accuracy"]["value"] = "high"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidArgument, match=r"arms\.0\.accuracy\.value"):
        read_report(path)
    with pytest.raises(InvalidArgument, match="allroads evaluate"):
        read_report(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        (("guess",), "serves no policy 'guess'"),
        (("slm",), "measured always"),
        (("r2r:share=0.5",), "r2r takes no share"),
        (("r2r:threshold=high",), "is not NAME"),
    ],
)
async def test_policies_that_cannot_be_measured_are_refused_before_anything_is_asked(
    tmp_path: Path, policies: tuple[str, ...], words: str
) -> None:
    evaluation = an_evaluation(tmp_path / "out")
    mesh = RestMesh()
    with pytest.raises(AllroadsError, match=words):
        await report_of(replace(evaluation, settings=replace(evaluation.settings, policies=policies)), mesh)
    assert mesh.bodies == []
    assert not (tmp_path / "out").exists()


def test_policies_are_named_with_parameters() -> None:
    assert parse_policy("me:weights=0.5/0.5:x=1").routing == {"policy": "me", "weights": [0.5, 0.5], "x": 1.0}


def points(*values: tuple[float, float, float]) -> list[Point]:
    return [Point(*one) for one in values]


def test_next_value_is_in_the_widest_gap_and_ends_where_neighbours_agree() -> None:
    own = (0.005, 0.06, 0.99)
    # Below it accuracy has nothing to gain, above it has all to lose: sqrt(0.005 x 1).
    known = points((0.0, 1.0, 1.0), own, (1.0, 0.0, 0.4))
    assert next_value(known) == 0.07071
    assert next_value([*known, *points((0.07071, 0.02, 0.7))]) == 0.00125
    assert next_value(points((-1.0, 0.0, 0.4), (1.0, 1.0, 1.0))) == 0.0
    assert next_value(points((0.0, 0.5, 0.9), (1.0, 0.5, 0.9))) is None


def test_the_front_has_what_nothing_beats() -> None:
    points = [(3.0, 0.9), (1.0, 0.5), (2.0, 0.4), (2.0, 0.8), (4.0, 0.9)]
    assert pareto_front(points) == [(1.0, 0.5), (2.0, 0.8), (3.0, 0.9)]


def test_scores_are_binned_without_parting_equal_ones() -> None:
    decisions = [("r2r", 0.1, False)] * 95 + [("r2r", 0.9, True)] * 4 + [("r2r", 0.9, False)]
    (found,) = reliability(decisions)
    assert [one.num_decisions for one in found.bins] == [95, 5]
    assert [one.mean_score for one in found.bins] == pytest.approx([0.1, 0.9])
    assert found.bins[1].differs.value == pytest.approx(0.8)


def test_samples_of_a_file_are_drawn_by_the_seed_and_keep_its_order(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    lines = [{"id": str(number), "prompt": "x", "answer": "y"} for number in range(100)]
    path.write_text("\n".join(map(json.dumps, lines)))
    few = [int(one.id) for one in from_file(path, 10, 1).problems]
    assert few == sorted(few)
    assert len(few) == 10
    assert few == [int(one.id) for one in from_file(path, 10, 1).problems]
    assert few != [int(one.id) for one in from_file(path, 10, 2).problems]


async def test_embedded_problems_are_scored_by_the_last_answer() -> None:
    (one,) = embedded(1, 0).problems
    assert one.answer is not None
    right = next(iter(re.findall(r"answer is (\d+)", one.answer)))
    score = AnswerScorer().is_right
    assert await score(one, f"So the answer is {right}.")
    assert not await score(one, f"So the answer is {right}5.")
    assert not await score(one, f"The answer is {right}. No, the answer is 100.")

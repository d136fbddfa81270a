"""What `allroads evaluate` does: asks a mesh, its own or a running one, and writes what came of it."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from ..answer_scoring import AnswerScorer
from ..audit.decision_file import DecisionLine, DecisionLog
from ..config import MeshSettings
from ..evaluation.arms import Arm
from ..evaluation.evaluating import Evaluation, Measured, build_report, measure
from ..evaluation.mesh_client import MeshClient
from ..evaluation.page import PAGE_FILE, render_page
from ..evaluation.reliability import Judged, reliability
from ..evaluation.report_file import REPORT_FILE, Reliability, Report
from ..evaluation.scoring import audit, read_reliability, save_reliability, scored_arms
from ..judge_endpoint import EndpointSettings, JudgeEndpoint
from ..router.scorers import load_scorers
from .console import stderr
from .endpoint import rest_url
from .mesh_for import MeshFor, with_mesh

_DECISIONS_FILE = "decisions.jsonl"


async def evaluate_own(
    evaluation: Evaluation, settings: MeshSettings, judge: EndpointSettings | None, *, ready_timeout_s: float
) -> Report:
    """Evaluate a mesh that is started for it, and look at its scores in a second one that records decisions.

    Prompts share no KV here: all arms read the same ones, and the first would pay for the others.

    Raises:
        AllroadsError: as `evaluating.measure` and `with_mesh`.
    """
    alike = {name: {"shares_prefixes": False} for name in settings.tiers}
    settings = settings.with_internal(alike)
    sizes = await asyncio.to_thread(_router_parameters, settings)
    evaluation = replace(evaluation, router_parameters=sizes)

    async def ask(mesh: MeshFor) -> Measured:
        await mesh.until_ready()
        return await _measure(evaluation, rest_url(mesh.settings), judge)

    measured = await with_mesh(settings, ask, speaker="evaluate", ready_timeout_s=ready_timeout_s)
    found = read_reliability(evaluation.directory)
    if found is None:
        found = await _look_at_scores(evaluation, measured, settings, ready_timeout_s)
        save_reliability(evaluation.directory, found)
    return _write(evaluation, measured, found)


async def evaluate_running(
    evaluation: Evaluation, url: str, judge: EndpointSettings | None, decisions: Path | None
) -> Report:
    """Evaluate a mesh that runs; `decisions` is its decision log, where scores are to be looked at.

    Raises:
        AllroadsError: as `evaluating.measure`, or the log is damaged.
    """
    measured = await _measure(evaluation, url, judge)
    return _write(evaluation, measured, [] if decisions is None else _read_scores(decisions))


async def _measure(evaluation: Evaluation, url: str, judge: EndpointSettings | None) -> Measured:
    async with AsyncExitStack() as stack:
        endpoint = None if judge is None else await stack.enter_async_context(JudgeEndpoint(judge))
        client = await stack.enter_async_context(MeshClient(url))
        status = stack.enter_context(stderr().status("starting"))
        counts: dict[str, int] = {}

        def on_answer(arm: Arm) -> None:
            counts[arm.name] = counts.get(arm.name, 0) + 1
            status.update(f"{arm.name or 'probing'}: {counts[arm.name]} answers")

        return await measure(evaluation, client, AnswerScorer(endpoint), on_answer)


async def _look_at_scores(
    evaluation: Evaluation, measured: Measured, settings: MeshSettings, ready_timeout_s: float
) -> list[Reliability]:
    scorers = {name: policy.scorer for name, policy in measured.served.policies.items()}
    if not (arms := scored_arms(measured.routed, scorers)):
        return []
    path = evaluation.directory.absolute() / _DECISIONS_FILE
    path.unlink(missing_ok=True)  # of a run that did not get to its end
    recorded = {"decisions_path": path, "decisions_files": 1, "writer": "llm"}

    async def ask(mesh: MeshFor) -> None:
        await mesh.until_ready()
        async with MeshClient(rest_url(mesh.settings)) as client:
            await audit(evaluation, client, arms)

    await with_mesh(settings.with_internal({"slm": recorded}), ask, speaker="evaluate", ready_timeout_s=ready_timeout_s)
    return _read_scores(path)


def _read_scores(path: Path) -> list[Reliability]:
    with DecisionLog([path]) as log:
        return reliability(_judged(log))


def _judged(log: DecisionLog) -> Iterator[Judged]:
    """Scores whose token the large model is known to have read or written, whatever the policy said."""
    for line in log.lines():
        if isinstance(line, DecisionLine) and line.is_open and line.score is not None:
            yield line.policy, line.score, line.differs


def _router_parameters(settings: MeshSettings) -> dict[str, int]:
    scorers = load_scorers(settings.with_internal({"router": {"device": "cpu"}}))
    return {name: scorer.facts.num_parameters for name, scorer in scorers.items()}


def _write(evaluation: Evaluation, measured: Measured, found: Sequence[Reliability]) -> Report:
    report = build_report(evaluation, measured, found)
    pages = {REPORT_FILE: report.model_dump_json(indent=1) + "\n", PAGE_FILE: render_page(report)}
    for name, text in pages.items():
        unfinished = evaluation.directory / f"{name}.part"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(evaluation.directory / name)
    return report

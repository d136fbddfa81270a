"""An evaluation from the first question to `report.json`."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..answer_scoring import AnswerScorer
from .answers import Answer, AnswerLog
from .arms import CONFIDENCE, LLM, SLM, Arm, RunSettings, random_arm, routed_arms
from .comparing import Ends, compare, query_curves
from .cost import ParameterCounts
from .figures import arm_figures
from .measuring import Measuring, OnAnswer
from .mesh_client import MeshClient, ServedModel
from .problem_set import ProblemSet
from .report_file import Comparison, Reliability, Report, ShownAnswer, Stretch
from .run_record import open_run, run_record
from .statistics import Resamples
from .sweep import Point, next_value, swept_parameter


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is evaluated, and where it is kept."""

    problems: ProblemSet
    settings: RunSettings
    directory: Path
    router_parameters: Mapping[str, int]
    """Of scorers by name, where they are known."""
    judge: str = ""
    """Who judges, for the record."""
    command: str = ""
    """That makes the same report, for the record."""


@dataclass(slots=True)
class Measured:
    """Arms whose answers are all there."""

    served: ServedModel
    record: dict[str, Any]
    routed: list[Arm]
    controls: dict[str, Arm] = field(default_factory=dict)
    """Random routing by the name of the routed arm at whose share it is."""
    swept: list[Arm] = field(default_factory=list)

    @property
    def arms(self) -> list[Arm]:
        """Those whose figures are told."""
        return [SLM, LLM, *self.routed, *self.controls.values(), *self.swept]


async def measure(
    evaluation: Evaluation, client: MeshClient, scorer: AnswerScorer, on_answer: OnAnswer = lambda arm: None
) -> Measured:
    """Ask the mesh all that is not answered yet.

    Raises:
        InvalidArgument: something that was asked for is not served, or the directory is another run's.
        AllroadsError: the mesh or the judge is out of reach.
    """
    for problem in evaluation.problems.problems:
        scorer.check(problem)
    served, settings = await client.served(), evaluation.settings
    routed = routed_arms(settings, served)
    record = run_record(evaluation.problems.source, served, routed, settings, evaluation.judge)
    open_run(evaluation.directory, record)
    measured = Measured(served, record, routed)
    with AnswerLog(evaluation.directory) as log:
        measuring = Measuring(client, served, evaluation.problems.problems, scorer, log, settings, on_answer)
        await measuring.measure([SLM, LLM, *routed, CONFIDENCE])
        if "random" in served.policies:
            for arm in routed:
                if arm.routing["policy"] != "random":
                    measured.controls[arm.name] = random_arm(arm, _point(0, arm, measuring).share)
        await measuring.measure(list(measured.controls.values()))
        for arm in routed:
            measured.swept += await _sweep(arm, measuring)
        await measuring.measure([_shown(arm) for arm in routed], settings.num_shown)
    return measured


async def _sweep(arm: Arm, measuring: Measuring) -> list[Arm]:
    """More points on the curve of a routed arm, each where it is known least."""
    policy = measuring.served.policy(arm.routing["policy"])
    name = swept_parameter(policy)
    if name is None or not measuring.settings.sweep:
        return []
    parameter = policy.parameters[name]
    own = arm.routing.get(name, parameter.default)
    known = [] if own is None else [_point(float(own), arm, measuring)]
    for end in (parameter.minimum, parameter.maximum):
        if end is not None:
            probe = Arm("", "sweep", {**arm.routing, name: end})
            # One answer tells which model writes there, and with it what all answers would be.
            await measuring.measure([probe], 1)
            share = _share_of(measuring.log.of(probe.key, [measuring.problems[0].id]))
            known.append(replace(_point(end, LLM if share > 0.5 else SLM, measuring), share=share))
    swept: list[Arm] = []
    while len(swept) < measuring.settings.sweep and (value := next_value(known)) is not None:
        point = Arm(f"{policy.name}, {name} {value:g}", "sweep", {**arm.routing, name: value})
        await measuring.measure([point])
        known.append(_point(value, point, measuring))
        swept.append(point)
    return swept


def build_report(evaluation: Evaluation, measured: Measured, reliability: Sequence[Reliability] = ()) -> Report:
    """The report of what was measured: the same answers give the same report."""
    problems, served, settings = evaluation.problems.problems, measured.served, evaluation.settings
    ids = [problem.id for problem in problems]
    tiers = tuple(
        settings.active_parameters.get(name, count)
        for name, count in zip(served.tiers, served.num_parameters, strict=True)
    )
    plain = ParameterCounts(tiers)
    resamples = Resamples(len(ids), settings.seed)
    router = _router_parameters(evaluation, measured)
    with AnswerLog(evaluation.directory) as log:
        ends = Ends(log.of(CONFIDENCE.key, ids), log.of(LLM.key, ids), plain)

        def counts(arm: Arm) -> ParameterCounts:
            return ParameterCounts(tiers, router.get(arm.routing["policy"], 0))

        def compared(arm: Arm) -> Comparison:
            control = measured.controls.get(arm.name)
            drawn = None if control is None else log.of(control.key, ids)
            return compare(arm.name, log.of(arm.key, ids), ends, drawn, counts(arm), resamples)

        return Report(
            allroads=__version__,
            run=measured.record,
            tiers=tuple(served.tiers),
            parameters=tiers,
            router_parameters=router,
            machine={"system": platform.platform(), "python": platform.python_version()},
            arms=tuple(
                arm_figures(arm, log.of(arm.key, ids), counts(arm), resamples, list(served.tiers))
                for arm in measured.arms
            ),
            comparisons=tuple(compared(arm) for arm in measured.routed),
            curves=tuple(query_curves(ends)),
            reliability=tuple(reliability),
            shown=tuple(
                _shown_answer(arm, answer, problem.messages[-1]["content"])
                for arm in measured.routed
                for problem, answer in zip(problems, log.of(_shown(arm).key, ids[: settings.num_shown]), strict=False)
            ),
            command=evaluation.command,
        )


def _router_parameters(evaluation: Evaluation, measured: Measured) -> dict[str, int]:
    known = {}
    for arm in measured.routed:
        policy = measured.served.policy(arm.routing["policy"])
        if policy.scorer is not None and policy.scorer in evaluation.router_parameters:
            known[policy.name] = evaluation.router_parameters[policy.scorer]
    return known


def _shown(arm: Arm) -> Arm:
    return Arm(arm.name, arm.role, arm.routing, has_logprobs=True)


def _shown_answer(arm: Arm, answer: Answer, question: str) -> ShownAnswer:
    """Tokens of one tier in a row are joined before they are read as text."""
    runs: list[tuple[int, bytearray]] = []
    for token in answer.shown:
        if not runs or runs[-1][0] != token.tier:
            runs.append((token.tier, bytearray()))
        runs[-1][1].extend(token.data)
    stretches = tuple(Stretch(tier=tier, text=bytes(data).decode(errors="replace")) for tier, data in runs)
    return ShownAnswer(
        arm=arm.name, problem=answer.problem, question=question, right=answer.right is True, stretches=stretches
    )


def _point(value: float, arm: Arm, measuring: Measuring) -> Point:
    answers = measuring.log.of(arm.key, [problem.id for problem in measuring.problems])
    return Point(value, _share_of(answers), sum(answer.right is True for answer in answers) / len(answers))


def _share_of(answers: Sequence[Answer]) -> float:
    """Of all tokens, those that the small model did not write."""
    total = sum(answer.num_tokens for answer in answers)
    own = sum(next(iter(answer.tokens.values())) for answer in answers)
    return 1 - own / total if total else 0.0

"""`allroads evaluate`: what routing is worth on given problems, in a report that others can read."""

import asyncio
import os
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..errors import StartupError
from ..svg_style import HOW_TO_INSTALL
from .console import stdout
from .options import Config, resolve_settings
from .refusals import as_wrong_command

if TYPE_CHECKING:
    from ..evaluation.report_file import Report

_JUDGE, _RUN = "Judge", "Run"


def evaluate(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for answers and report; a run continues there.")],
    problems: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Problems with answers, JSON Lines. Without: the embedded pair's own."),
    ] = None,
    config: Config = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="A mesh that runs. Without: one is started for it.")
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            show_default="the mesh's",
            help="Policies to evaluate, perhaps with parameters: r2r,entropy:threshold=0.8",
        ),
    ] = None,
    sweep: Annotated[int, typer.Option(min=0, max=50, metavar="N", help="Points of each policy's curve.")] = 6,
    num_problems: Annotated[int, typer.Option(min=1, metavar="N", help="Embedded problems, without --problems.")] = 200,
    max_problems: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Problems of the file at most, drawn by the seed.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="Of all draws.", rich_help_panel=_RUN)] = 0,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1024, metavar="C", help="Requests at once.", rich_help_panel=_RUN)
    ] = 8,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Length of an answer at most.", rich_help_panel=_RUN)
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy.", rich_help_panel=_RUN)] = 0.0,
    active: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIER=N",
            help="Parameters that a token activates, for a mixture of experts: llm=3.3e9.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    decisions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --url: the mesh's decision log of an audit.", rich_help_panel=_RUN),
    ] = None,
    judge_url: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible endpoint.", rich_help_panel=_JUDGE)
    ] = None,
    judge_model: Annotated[str | None, typer.Option(metavar="NAME", rich_help_panel=_JUDGE)] = None,
    judge_key: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with its key.", rich_help_panel=_JUDGE),
    ] = None,
    ready_timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long services may take until they are ready.")
    ] = 120.0,
) -> None:
    """Answer problems with each model alone, with routing, and with what could be done instead; report what it costs.

    Writes `report.html` and `report.json`. Answers are kept as they come: after an interruption the same command
    goes on where it stopped.
    """
    _check(config, url, decisions, problems, max_problems)
    # gRPC reads it when it is imported; it tells of every connection that a stopping service closes.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Late, so that no other command pays for it.
    from ..answer_scoring import AnswerScorer  # noqa: PLC0415
    from ..evaluation.arms import RunSettings  # noqa: PLC0415
    from ..evaluation.evaluating import Evaluation  # noqa: PLC0415
    from ..evaluation.problem_set import embedded, from_file  # noqa: PLC0415
    from ..judge_endpoint import EndpointSettings  # noqa: PLC0415
    from .evaluate_mesh import evaluate_own, evaluate_running  # noqa: PLC0415

    if (judge_url is None) != (judge_model is None):
        raise typer.BadParameter("a judge has both --judge-url and --judge-model")
    judge = None
    if judge_url is not None and judge_model is not None:
        judge = EndpointSettings(judge_url, judge_model, judge_key or "")
    with as_wrong_command():
        evaluation = Evaluation(
            problems=embedded(num_problems, seed) if problems is None else from_file(problems, max_problems, seed),
            settings=RunSettings(
                policies=tuple(policies.split(",")) if policies else (),
                sweep=sweep,
                seed=seed,
                concurrency=concurrency,
                max_tokens=max_tokens,
                temperature=temperature,
                active_parameters=_active(active or []),
            ),
            directory=out,
            router_parameters={},
            judge="" if judge is None else f"{judge.model} at {judge.url}",
            command=_command({
                "--problems": problems, "--num-problems": None if problems else num_problems,
                "--max-problems": max_problems, "--config": config, "--url": url, "--policies": policies,
                "--sweep": sweep, "--seed": seed, "--concurrency": concurrency, "--max-tokens": max_tokens,
                "--temperature": temperature, "--judge-url": judge_url, "--judge-model": judge_model,
                "--judge-key": judge_key, "--decisions": decisions, "--out": out,
            }, active or []),
        )  # fmt: skip
        # Before a mesh is started for them.
        for problem in evaluation.problems.problems if judge is None else ():
            AnswerScorer().check(problem)
        if url is not None:
            report = asyncio.run(evaluate_running(evaluation, url, judge, decisions))
        else:
            settings = resolve_settings(config)
            report = asyncio.run(evaluate_own(evaluation, settings, judge, ready_timeout_s=ready_timeout))
    _show(report, out)


def _check(
    config: Path | None, url: str | None, decisions: Path | None, problems: Path | None, max_problems: int | None
) -> None:
    if config is not None and url is not None:
        raise typer.BadParameter("give --config or --url, not both")
    if decisions is not None and url is None:
        raise typer.BadParameter("--decisions is for --url; a mesh that is started here records its own")
    if max_problems is not None and problems is None:
        raise typer.BadParameter("--max-problems is for --problems; say --num-problems")
    if find_spec("matplotlib") is None:
        raise StartupError(f"pictures need matplotlib: {HOW_TO_INSTALL}")


def _active(given: list[str]) -> dict[str, int]:
    found = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            count = float(number)
        except ValueError:
            count = 0.0
        if not 1 <= count < 1e15:
            raise typer.BadParameter(f"--active {text!r} is not TIER=N with a number from 1 up")
        found[name] = int(count)
    return found


def _command(options: dict[str, object], active: list[str]) -> str:
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    given += [part for text in active for part in ("--active", text)]
    return shlex.join(["allroads", "evaluate", *given])


def _show(report: "Report", out: Path) -> None:
    from ..evaluation.wording import percent, percent_interval, summary  # noqa: PLC0415

    table = Table("arm", "right", "LLM tokens", "cost (published)", "cost (full)", "token/s", "tokens an answer")
    for arm in report.arms:
        full = "unknown" if arm.full_cost is None else f"{arm.full_cost.value:.4g}"
        cells = (
            arm.name,
            percent_interval(arm.accuracy),
            percent(arm.llm_share.value),
            f"{arm.published_cost.value:.4g}",
            full,
            f"{arm.tokens_per_s:.4g}",
            f"{arm.length.value:.4g}",
        )
        table.add_row(*map(Text, cells))
    stdout().print(table, soft_wrap=False)
    for paragraph in summary(report):
        stdout().print(paragraph)
    stdout().print(f"report: {out / 'report.html'}")

"""`allroads plan`: what a mesh can carry, and how many GPUs a traffic needs."""

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidArgument, StartupError
from ..svg_style import HOW_TO_INSTALL
from . import throughput_options as options
from .console import stdout
from .refusals import as_wrong_command

if TYPE_CHECKING:
    from ..throughput.planning import Plan
    from ..throughput.setting import Setting
    from ..throughput.traffic import Traffic

_TRAFFIC = "Traffic"
_AS_IS = "as it is"


def plan(
    step_times: options.StepTimes = None,
    url: options.Url = None,
    slm_ms: options.SlmMs = None,
    slm_row_ms: options.SlmRowMs = None,
    llm_ms: options.LlmMs = None,
    llm_row_ms: options.LlmRowMs = None,
    slow_down: options.SlowDown = None,
    share: options.Share = None,
    visit_ends: options.VisitEnds = None,
    confirmed: options.Confirmed = None,
    max_ahead: options.MaxAhead = None,
    hand_off_ms: options.HandOffMs = None,
    answer_tokens: options.AnswerTokens = None,
    request_ms: options.RequestMs = None,
    rate: Annotated[
        float | None, typer.Option(metavar="R", help="Requests that come in a second.", rich_help_panel=_TRAFFIC)
    ] = None,
    min_tokens_per_s: Annotated[
        float | None, typer.Option(metavar="T", help="Promise: token/s of each request.", rich_help_panel=_TRAFFIC)
    ] = None,
    max_first_token_s: Annotated[
        float | None, typer.Option(metavar="S", help="Promise: mean time to first token.", rich_help_panel=_TRAFFIC)
    ] = None,
    max_requests: Annotated[
        int, typer.Option(min=1, max=4096, metavar="N", help="For which there is memory.", rich_help_panel=_TRAFFIC)
    ] = 256,
    utilisation: Annotated[
        float, typer.Option(metavar="U", help="Part of the capacity to plan with.", rich_help_panel=_TRAFFIC)
    ] = 0.8,
    gpus_per_replica: Annotated[
        int, typer.Option(min=1, metavar="G", help="GPUs of one mesh.", rich_help_panel=_TRAFFIC)
    ] = 1,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Another mesh beside it: share=0.1, llm-ms=14, slow-down=1, device-speed=2. All that are given hold.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a picture, SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON in place of tables.")] = False,
) -> None:
    """Reckon launch thresholds, capacity, latency and the number of GPUs from step times, routing share and traffic.

    What the figures mean and assume: docs/planning.md.
    """
    if plot is not None and find_spec("matplotlib") is None:
        raise StartupError(f"--plot needs matplotlib: {HOW_TO_INSTALL}")
    # Late, so that no other command pays for it.
    from ..throughput.changes import changed  # noqa: PLC0415
    from ..throughput.planning import make_plan  # noqa: PLC0415
    from ..throughput.traffic import Traffic  # noqa: PLC0415
    from .plan_view import show_plans  # noqa: PLC0415

    with as_wrong_command():
        setting = options.SettingOptions(
            step_times=step_times,
            url=url,
            slm_ms=slm_ms,
            slm_row_ms=slm_row_ms,
            llm_ms=llm_ms,
            llm_row_ms=llm_row_ms,
            slow_down=slow_down,
            share=share,
            visit_ends=visit_ends,
            confirmed=confirmed,
            max_ahead=max_ahead,
            hand_off_ms=hand_off_ms,
            answer_tokens=answer_tokens,
            request_ms=request_ms,
        ).setting()
        traffic = Traffic(rate, min_tokens_per_s, max_first_token_s, max_requests, gpus_per_replica, utilisation)
        settings = {_AS_IS: setting}
        if what_if:
            settings[f"what if {', '.join(what_if)}"] = changed(
                setting, [options.parse_change(text) for text in what_if]
            )
        plans = {}
        for name, described in settings.items():
            try:
                plans[name] = make_plan(described, traffic)
            except InvalidArgument as error:
                raise InvalidArgument(f"{name}: {error.message}" if what_if else error.message,
                                      field=error.field) from error  # fmt: skip
    if plot is not None:
        _write_plot(plot, plans, traffic)
    if as_json:
        base, *others = (_as_json(settings[name], found) for name, found in plans.items())
        content = {
            "traffic": asdict(traffic),
            "changes": what_if or [],
            "base": base,
            "what_if": others[0] if others else None,
        }
        stdout().print(json.dumps(content, indent=2, allow_nan=False))
    else:
        show_plans(plans, settings)


def _as_json(setting: "Setting", found: "Plan") -> dict[str, Any]:
    from ..throughput.setting_json import setting_to_json  # noqa: PLC0415

    return {"setting": setting_to_json(setting), **asdict(found)}


def _write_plot(path: Path, plans: dict[str, "Plan"], traffic: "Traffic") -> None:
    from ..throughput.plan_plot import draw_plan  # noqa: PLC0415

    try:
        path.write_text(draw_plan(list(plans.items()), traffic.min_tokens_per_s), encoding="utf-8")
    except OSError as error:
        raise StartupError(f"cannot write the picture: {error}; choose another --plot", field="plot") from error

"""`allroads simulate`: what the throughput model says beside what an event simulation of the same mesh counts."""

import json
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidArgument, StartupError
from ..svg_style import HOW_TO_INSTALL
from . import throughput_options as options
from .console import stdout
from .refusals import as_wrong_command
from .simulate_view import show_simulations

if TYPE_CHECKING:
    from ..throughput.setting import Prediction, Setting
    from ..throughput.tally import Simulated

_RUN = "Simulation"
_MOST_REQUESTS, _MOST_CYCLES, _MOST_STEPS = 4096, 1_000_000, 5e7


def simulate(
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
    requests: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=_MOST_REQUESTS,
            metavar="N",
            help="Requests at once; may be given again. Without: 1, 4, 16.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    threshold: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            metavar="B",
            help="For how many the large model waits; once for each larger tier. Without: what the model finds best.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    cycles: Annotated[
        int,
        typer.Option(min=20, max=_MOST_CYCLES, metavar="N", help="Visits that are counted.", rich_help_panel=_RUN),
    ] = 20_000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of all chance.", rich_help_panel=_RUN)] = 0,
    flush_ms: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="MS",
            help="After which a larger tier waits no longer, in the simulation. Without: it waits on.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON in place of a table.")] = False,
) -> None:
    """Simulate a mesh step by step, and show what the throughput model predicts beside it.

    What both mean and assume: docs/admission.md.
    """
    if find_spec("simpy") is None:
        raise StartupError(f"allroads simulate needs SimPy: {HOW_TO_INSTALL}")
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
        flush_s = None if flush_ms is None else flush_ms / 1e3
        pairs = [
            _both(setting, number, threshold, cycles, seed, flush_s) for number in dict.fromkeys(requests or (1, 4, 16))
        ]
    if as_json:
        stdout().print(json.dumps({"runs": [_as_json(*pair) for pair in pairs]}, indent=2, allow_nan=False))
    else:
        show_simulations(setting, pairs)


def _both(
    setting: "Setting", num_requests: int, thresholds: list[int] | None, cycles: int, seed: int, flush_s: float | None
) -> "tuple[Prediction, Simulated]":
    # Late, so that no other command pays for it.
    from ..throughput.chain import predict  # noqa: PLC0415
    from ..throughput.simulate import simulate as run  # noqa: PLC0415
    from ..throughput.solve import Solver  # noqa: PLC0415

    if thresholds is not None and len(thresholds) != len(setting.larger):
        names = ", ".join(tier.name for tier in setting.larger)
        raise InvalidArgument(f"give --threshold once for each of: {names}", field="threshold")
    steps = cycles * (setting.home.stay.mean + sum(tier.stay.mean for tier in setting.larger))
    if steps > _MOST_STEPS:
        raise InvalidArgument(
            f"{cycles} visits with the stays before them are about {steps:.2g} steps, more than {_MOST_STEPS:.0e}: "
            "lower --cycles",
            field="cycles",
        )
    if thresholds is None:
        predicted = Solver().best(setting, num_requests)
    else:
        predicted = predict(setting, num_requests, [min(value, num_requests) for value in thresholds])
    try:
        counted = run(setting, num_requests, predicted.thresholds, num_cycles=cycles, seed=seed, flush_s=flush_s)
    except ValueError as error:
        raise InvalidArgument(str(error), field="threshold") from error
    return predicted, counted


def _as_json(predicted: "Prediction", counted: "Simulated") -> dict[str, object]:
    off = predicted.tokens_per_s / counted.tokens_per_s - 1.0
    return {"predicted": asdict(predicted), "simulated": asdict(counted), "off": off}

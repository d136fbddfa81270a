"""Options by which `allroads plan` and `allroads simulate` describe a mesh under load, and the setting of them."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidArgument
from .live_setting import fetch_setting
from .step_times import read_step_times

if TYPE_CHECKING:
    from ..throughput.setting import Setting

_SOURCE, _SETTING = "Step times (one of the three)", "Setting"

StepTimes = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Tiers with their step times, YAML or JSON: docs/planning.md.", rich_help_panel=_SOURCE
    ),
]
Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A gateway that runs: its live profile is taken.", rich_help_panel=_SOURCE),
]
SlmMs = Annotated[
    float | None, typer.Option(metavar="MS", help="A step of the small model, one row.", rich_help_panel=_SOURCE)
]
SlmRowMs = Annotated[
    float | None, typer.Option(metavar="MS", help="What each further row adds.", rich_help_panel=_SOURCE)
]
LlmMs = Annotated[
    float | None, typer.Option(metavar="MS", help="A step of the large model, one row.", rich_help_panel=_SOURCE)
]
LlmRowMs = Annotated[
    float | None, typer.Option(metavar="MS", help="What each further row adds.", rich_help_panel=_SOURCE)
]
SlowDown = Annotated[
    float | None,
    typer.Option(
        metavar="X", help="How many times longer a step takes while another tier is in one.", rich_help_panel=_SOURCE
    ),
]
Share = Annotated[
    float | None,
    typer.Option(metavar="P", help="Of the small model's steps, those that are handed off.", rich_help_panel=_SETTING),
]
VisitEnds = Annotated[
    float | None,
    typer.Option(metavar="Q", help="Chance that a visit ends with a step. Without: 1.", rich_help_panel=_SETTING),
]
Confirmed = Annotated[
    float | None,
    typer.Option(metavar="C", help="Of visits, those after which work ahead stays.", rich_help_panel=_SETTING),
]
MaxAhead = Annotated[
    int | None, typer.Option(metavar="N", help="Steps the small model goes on meanwhile.", rich_help_panel=_SETTING)
]
HandOffMs = Annotated[
    float | None,
    typer.Option(metavar="MS", help="Of a visit besides waiting and steps.", rich_help_panel=_SETTING),
]
AnswerTokens = Annotated[
    float | None, typer.Option(metavar="N", help="Mean length of an answer.", rich_help_panel=_SETTING)
]
RequestMs = Annotated[
    float | None,
    typer.Option(
        metavar="MS", help="Of a request besides its tokens: prompt, way in and out.", rich_help_panel=_SETTING
    ),
]


@dataclass(frozen=True, kw_only=True)
class SettingOptions:
    """What was given of them; None is not given. The fields but the first two are keys of `changes.changed`."""

    step_times: Path | None = None
    url: str | None = None
    slm_ms: float | None = None
    llm_ms: float | None = None
    slm_row_ms: float | None = None
    llm_row_ms: float | None = None
    slow_down: float | None = None
    share: float | None = None
    visit_ends: float | None = None
    confirmed: float | None = None
    max_ahead: int | None = None
    hand_off_ms: float | None = None
    answer_tokens: float | None = None
    request_ms: float | None = None

    def setting(self) -> "Setting":
        """The setting: from a file, a gateway or two numbers, with what else was given instead of theirs.

        Raises:
            InvalidArgument: an option is missing, contradicts another, or is out of its range; names it.
            Unavailable: the gateway cannot be reached, or does not know its profile yet.
        """
        from ..throughput.changes import changed  # noqa: PLC0415 (numpy, which other commands start without)

        sources = [
            self.step_times is not None,
            self.url is not None,
            self.slm_ms is not None or self.llm_ms is not None,
        ]
        if sum(sources) != 1:
            raise InvalidArgument(
                "give step times once: --step-times FILE, --url URL, or --slm-ms with --llm-ms", field="step_times"
            )
        if self.url is None and self.share is None:
            raise InvalidArgument("--share is missing: of the small model's steps, those handed off", field="share")
        given = {
            field.name.replace("_", "-"): float(value)
            for field in fields(self)[2:]
            if (value := getattr(self, field.name)) is not None
        }
        return changed(self._source(), list(given.items()))

    def _source(self) -> "Setting":
        if self.step_times is not None:
            return read_step_times(self.step_times)
        if self.url is not None:
            return fetch_setting(self.url)
        from ..throughput.setting import Setting, StepCurve  # noqa: PLC0415

        for name, value in (("slm_ms", self.slm_ms), ("llm_ms", self.llm_ms)):
            if value is None:
                raise InvalidArgument(f"--{name.replace('_', '-')} is missing", field=name)
        second = StepCurve((1,), (1.0,))
        return Setting.routed(1.0, (second, second), (second, second))


def parse_change(text: str) -> tuple[str, float]:
    """A key and a number of `KEY=VALUE`.

    Raises:
        InvalidArgument: it is not of that form.
    """
    key, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise InvalidArgument(f"--what-if {text!r} is not KEY=NUMBER, such as share=0.1", field="what_if")
    return key.strip(), value

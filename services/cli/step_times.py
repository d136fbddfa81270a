"""Step times of tiers from a file, as `allroads plan` and `allroads simulate` read them.

A mapping of tiers, the home first, larger ones after it in their order. Points are rows: milliseconds.

    slm:
      alone: {1: 6.0, 64: 9.0}
      co_running: {1: 7.5, 64: 12.0}   # beside another tier; without it the same as alone
    llm:
      alone: {1: 27.9, 32: 33.0}
      share: 1                         # of all hand-offs; needed where there are several larger tiers
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from ..errors import InvalidArgument

if TYPE_CHECKING:
    from ..throughput.setting import Setting, StepCurve

_FIELD = "step_times"

_Rows = Annotated[int, Field(ge=1, le=1_000_000)]
_Milliseconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_Points = Annotated[dict[_Rows, _Milliseconds], Field(min_length=1, max_length=4096)]


class _TierTimes(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    alone: _Points
    co_running: _Points | None = None
    share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None


class _File(RootModel[dict[str, _TierTimes]]):
    pass


def read_step_times(path: Path) -> "Setting":
    """A setting with the tiers of a YAML or JSON file; each hand-off is one token, and all else as `Setting` has it.

    Raises:
        InvalidArgument: the file cannot be read or is not as the head of this module says; names the field.
    """
    from ..throughput.phases import Phases  # noqa: PLC0415 (numpy, which other commands start without)
    from ..throughput.setting import Setting, Tier  # noqa: PLC0415

    tiers = _read(path)
    if len(tiers) < 2:
        raise InvalidArgument(f"{path} must name two tiers at least, the home first", field=_FIELD)
    made = []
    for name, times in tiers.items():
        alone = _curve(times.alone, f"{name}.alone")
        co_running = alone if times.co_running is None else _curve(times.co_running, f"{name}.co_running")
        made.append(Tier(name, alone, co_running, Phases.geometric(1.0)))
    return Setting(made[0], tuple(made[1:]), tokens_per_cycle=1.0, shares=_shares(tiers))


def _read(path: Path) -> dict[str, _TierTimes]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidArgument(f"cannot read the step times in {path}: {error}", field=_FIELD) from error
    try:
        return _File.model_validate(content).root
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part != "[key]") or _FIELD
        raise InvalidArgument(f"{path}: {field}: {first['msg']}", field=field) from error


def _curve(points: dict[int, float], field: str) -> "StepCurve":
    from ..throughput.setting import StepCurve  # noqa: PLC0415

    if 1 not in points:
        raise InvalidArgument(f"{field} needs the time of a step of 1 row", field=field)
    sizes = sorted(points)
    return StepCurve(tuple(sizes), tuple(points[size] / 1e3 for size in sizes))


def _shares(tiers: dict[str, _TierTimes]) -> tuple[float, ...]:
    home, *larger = tiers
    if tiers[home].share is not None:
        raise InvalidArgument(
            f"{home}.share: the first tier is the home, nothing is handed to it", field=f"{home}.share"
        )
    if len(larger) == 1 and tiers[larger[0]].share is None:
        return (1.0,)
    shares = []
    for name in larger:
        share = tiers[name].share
        if share is None:
            raise InvalidArgument(f"{name}.share is missing: of all hand-offs, those to {name}", field=f"{name}.share")
        shares.append(share)
    if abs(sum(shares) - 1.0) > 1e-6:
        raise InvalidArgument(f"shares must sum to 1, not {sum(shares):g}", field=f"{larger[-1]}.share")
    return tuple(shares)

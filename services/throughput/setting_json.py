"""A setting as JSON and back, field by field as `Setting` names them; an answer without end is null."""

import math
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument
from .phases import Phases
from .setting import Setting, StepCurve, Tier

_ROOT = "setting"
_MAX_ITEMS = 4096
"""Of a list: more points or phases no profile has."""
_MAX_TIERS = 16


def setting_to_json(setting: Setting) -> dict[str, Any]:
    """What `json.dumps` takes also with `allow_nan=False`; `setting_from_json` gives an equal setting."""
    tokens = setting.tokens_per_request
    return {
        "home": _tier_to_json(setting.home),
        "larger": [_tier_to_json(tier) for tier in setting.larger],
        "tokens_per_cycle": float(setting.tokens_per_cycle),
        "shares": [float(share) for share in setting.shares],
        "hand_off_s": float(setting.hand_off_s),
        "max_ahead": int(setting.max_ahead),
        "confirmed": float(setting.confirmed),
        "tokens_per_request": None if math.isinf(tokens) else float(tokens),
        "request_s": float(setting.request_s),
    }


def setting_from_json(given: object) -> Setting:
    """The setting that `setting_to_json` wrote.

    Raises:
        InvalidArgument: a field is missing, unknown, or not what it must be; names it as `setting.home.alone.sizes`.
    """
    names = ("home", "larger", "tokens_per_cycle", "shares", "hand_off_s", "max_ahead", "confirmed",
             "tokens_per_request", "request_s")  # fmt: skip
    fields = _object(given, _ROOT, names)
    tiers = _list(fields["larger"], f"{_ROOT}.larger", _MAX_TIERS)
    tokens = fields["tokens_per_request"]
    max_ahead = fields["max_ahead"]
    if not isinstance(max_ahead, int) or isinstance(max_ahead, bool):
        raise _wrong(f"{_ROOT}.max_ahead", "a whole number", max_ahead)
    home = _tier(fields["home"], f"{_ROOT}.home")
    larger = tuple(_tier(tier, f"{_ROOT}.larger[{place}]") for place, tier in enumerate(tiers))
    numbers = {
        name: _number(fields[name], f"{_ROOT}.{name}")
        for name in ("tokens_per_cycle", "hand_off_s", "confirmed", "request_s")
    }
    shares = _numbers(fields["shares"], f"{_ROOT}.shares")
    tokens_per_request = math.inf if tokens is None else _number(tokens, f"{_ROOT}.tokens_per_request")
    try:
        return Setting(
            home, larger, shares=shares, max_ahead=max_ahead, tokens_per_request=tokens_per_request, **numbers
        )
    except ValueError as error:
        raise InvalidArgument(f"{_ROOT}: {error}", field=_ROOT) from error


def _tier_to_json(tier: Tier) -> dict[str, Any]:
    return {
        "name": tier.name,
        "alone": _curve_to_json(tier.alone),
        "co_running": _curve_to_json(tier.co_running),
        "stay": {
            "start": [float(value) for value in tier.stay.start],
            "moves": [[float(value) for value in row] for row in tier.stay.moves],
        },
    }


def _curve_to_json(curve: StepCurve) -> dict[str, Any]:
    return {"sizes": [int(size) for size in curve.sizes], "seconds": [float(value) for value in curve.seconds]}


def _tier(given: object, field: str) -> Tier:
    fields = _object(given, field, ("name", "alone", "co_running", "stay"))
    name = fields["name"]
    if not isinstance(name, str) or not name:
        raise _wrong(f"{field}.name", "a name", name)
    alone, co_running = (_curve(fields[which], f"{field}.{which}") for which in ("alone", "co_running"))
    return Tier(name, alone, co_running, _phases(fields["stay"], f"{field}.stay"))


def _curve(given: object, field: str) -> StepCurve:
    fields = _object(given, field, ("sizes", "seconds"))
    sizes = _list(fields["sizes"], f"{field}.sizes", _MAX_ITEMS)
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise _wrong(f"{field}.sizes", "a list of whole numbers", sizes)
    seconds = _numbers(fields["seconds"], f"{field}.seconds")
    try:
        return StepCurve(tuple(sizes), seconds)
    except ValueError as error:
        raise InvalidArgument(f"{field}: {error}", field=field) from error


def _phases(given: object, field: str) -> Phases:
    fields = _object(given, field, ("start", "moves"))
    start = _numbers(fields["start"], f"{field}.start")
    rows = _list(fields["moves"], f"{field}.moves", _MAX_ITEMS)
    moves = tuple(_numbers(row, f"{field}.moves[{place}]") for place, row in enumerate(rows))
    if not start or len(moves) != len(start) or any(len(row) != len(start) for row in moves):
        raise InvalidArgument(f"{field}.moves must be a square, a row for each of {field}.start", field=field)
    try:
        return Phases(start, moves)
    except ValueError as error:
        raise InvalidArgument(f"{field}: {error}", field=field) from error


def _object(given: object, field: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise _wrong(field, "an object", given)
    for name in names:
        if name not in given:
            raise InvalidArgument(f"{field}.{name} is missing", field=f"{field}.{name}")
    for name in given:
        if name not in names:
            known = ", ".join(names)
            raise InvalidArgument(f"{field}.{name} is unknown; {field} has {known}", field=f"{field}.{name}")
    return given


def _list(given: object, field: str, most: int) -> list[Any]:
    if not isinstance(given, list) or len(given) > most:
        raise _wrong(field, f"a list of {most} items at most", given)
    return given


def _numbers(given: object, field: str) -> tuple[float, ...]:
    return tuple(_number(item, f"{field}[{place}]") for place, item in enumerate(_list(given, field, _MAX_ITEMS)))


def _number(given: object, field: str) -> float:
    if not isinstance(given, int | float) or isinstance(given, bool) or not abs(given) < 1e300:
        raise _wrong(field, "a finite number", given)
    return float(given)


def _wrong(field: str, what: str, given: object) -> InvalidArgument:
    shown = repr(given)
    return InvalidArgument(f"{field} must be {what}, not {shown if len(shown) < 80 else type(given).__name__}",
                           field=field)  # fmt: skip

"""A setting with something else about it: another share, another pair, another device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import InvalidArgument
from .phases import Phases
from .setting import Setting, StepCurve, Tier

Change = tuple[str, float]
"""Key and value, as `--what-if KEY=VALUE` has them. Times are milliseconds."""


@dataclass(frozen=True)
class _Range:
    low: float
    high: float
    whole: bool = False

    def check(self, key: str, value: float) -> None:
        if not self.low <= value <= self.high or (self.whole and value != int(value)):
            kind = "a whole number" if self.whole else "a number"
            raise InvalidArgument(f"{key} must be {kind} from {self.low:g} to {self.high:g}, not {value:g}", field=key)


_PROBABILITY = _Range(0.0, 1.0)
_CHANCE = _Range(1e-6, 1.0)
_STEP_MS = _Range(1e-6, 1e6)
_ROW_MS = _Range(0.0, 1e6)
_DELAY_MS = _Range(0.0, 1e7)
_FACTOR = _Range(1e-4, 1e4)


def changed(setting: Setting, changes: Sequence[Change]) -> Setting:
    """The setting after changes, one after the other.

    `share` and `visit-ends` make stays at home and visits geometric; tokens of a cycle follow as their steps do.
    `NAME-ms`, NAME being a tier, makes all its times so many times longer or shorter that a step of one row alone
    takes so long; `NAME-row-ms` makes its curves lines on which each further row adds that much, and `slow-down`
    those beside another tier so many times those alone. `device-speed` divides the step times of all tiers; what
    hand-offs and requests take besides stays as it is.

    Raises:
        InvalidArgument: there is no such key, or a value is out of its range; names the key.
    """
    for key, value in changes:
        try:
            setting = _changed(setting, key, value)
        except ValueError as error:
            raise InvalidArgument(f"{key} = {value:g} leaves no setting: {error}", field=key) from error
    return setting


def keys_of(setting: Setting) -> list[str]:
    """What can be changed about it."""
    return [*(f"{tier.name}-{what}" for tier in _tiers(setting) for what in ("ms", "row-ms")), *_CHANGES]


def _changed(setting: Setting, key: str, value: float) -> Setting:
    if key in _CHANGES:
        allowed, change = _CHANGES[key]
        allowed.check(key, value)
        return change(setting, value)
    for suffix, allowed, change_tier in (("-row-ms", _ROW_MS, _with_row_ms), ("-ms", _STEP_MS, _with_step_ms)):
        name = key.removesuffix(suffix)
        if name != key and name in {tier.name for tier in _tiers(setting)}:
            allowed.check(key, value)
            return _each(setting, lambda tier: change_tier(tier, value) if tier.name == name else tier)  # noqa: B023
    raise InvalidArgument(f"nothing is called {key!r}; there are {', '.join(keys_of(setting))}", field=key)


def _tiers(setting: Setting) -> tuple[Tier, ...]:
    return (setting.home, *setting.larger)


def _each(setting: Setting, change: Callable[[Tier], Tier]) -> Setting:
    return replace(setting, home=change(setting.home), larger=tuple(map(change, setting.larger)))


def _with_step_ms(tier: Tier, step_ms: float) -> Tier:
    return _slower(tier, step_ms / 1e3 / tier.alone.at(1))


def _with_row_ms(tier: Tier, row_ms: float) -> Tier:
    first_s = tier.alone.at(1)
    alone = StepCurve((1, 2), (first_s, first_s + row_ms / 1e3))
    return replace(tier, alone=alone, co_running=alone.scaled(tier.slow_down))


def _slower(tier: Tier, factor: float) -> Tier:
    return replace(tier, alone=tier.alone.scaled(factor), co_running=tier.co_running.scaled(factor))


def _with_share(setting: Setting, share: float) -> Setting:
    stay = Phases.geometric(share)
    after = replace(setting, home=replace(setting.home, stay=stay))
    return _with_tokens_as_steps(setting, after)


def _with_visit_ends(setting: Setting, ends: float) -> Setting:
    visit = Phases.geometric(ends)
    after = replace(setting, larger=tuple(replace(tier, stay=visit) for tier in setting.larger))
    return _with_tokens_as_steps(setting, after)


def _with_tokens_as_steps(before: Setting, after: Setting) -> Setting:
    """Tokens of a cycle grow as its steps do, less the one whose token is turned down."""
    return replace(after, tokens_per_cycle=before.tokens_per_cycle * _steps(after) / _steps(before))


def _steps(setting: Setting) -> float:
    visits = (share * tier.stay.mean for share, tier in zip(setting.shares, setting.larger, strict=True))
    return setting.home.stay.mean - 1.0 + sum(visits)


_CHANGES: Mapping[str, tuple[_Range, Callable[[Setting, float], Setting]]] = {
    "slow-down": (
        _FACTOR,
        lambda setting, value: _each(setting, lambda tier: replace(tier, co_running=tier.alone.scaled(value))),
    ),
    "device-speed": (_FACTOR, lambda setting, value: _each(setting, lambda tier: _slower(tier, 1.0 / value))),
    "share": (_CHANCE, _with_share),
    "visit-ends": (_CHANCE, _with_visit_ends),
    "confirmed": (_PROBABILITY, lambda setting, value: replace(setting, confirmed=value)),
    "max-ahead": (_Range(0, 1024, whole=True), lambda setting, value: replace(setting, max_ahead=int(value))),
    "hand-off-ms": (_DELAY_MS, lambda setting, value: replace(setting, hand_off_s=value / 1e3)),
    "answer-tokens": (
        _Range(1.0, 1e9),
        lambda setting, value: replace(setting, tokens_per_request=value),
    ),
    "request-ms": (_DELAY_MS, lambda setting, value: replace(setting, request_s=value / 1e3)),
}

"""What models cost, as it is given: prices of tokens, or of the machines that they run on by the hour."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import InvalidArgument

_MAX_PRICE = 1e9
_FORMS = "tokens, or gpu_per_hour"


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Of one model, for a million tokens."""

    input_per_million: float
    """That it reads."""
    output_per_million: float
    """That it writes."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Either prices of tokens by tier, or of machines."""

    currency: str
    tokens: Mapping[str, TokenPrice] | None = None
    gpu_per_hour: Mapping[str, float] | None = None
    """By tier, each model on machines of its own."""
    machine_per_hour: float | None = None
    """Of one machine that holds all models."""

    def hourly(self, tiers: Sequence[str]) -> float:
        """What an hour costs in which these tiers are held ready, where machines have the prices."""
        if self.machine_per_hour is not None:
            return self.machine_per_hour
        return sum((self.gpu_per_hour or {})[tier] for tier in tiers)


def read_prices(path: Path, tiers: Sequence[str]) -> Prices:
    """Prices from a YAML or JSON file.

    Raises:
        InvalidArgument: the file cannot be read, or a price is missing, negative or no number; names the field.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidArgument(f"cannot read the prices in {path}: {error}", field="prices") from error
    if not isinstance(content, dict):
        raise InvalidArgument(f"{path} must have {_FORMS}", field="prices")
    currency = content.pop("currency", "")
    if not isinstance(currency, str) or len(currency) > 20:
        raise InvalidArgument("currency must be a short text", field="currency")
    if len(content) != 1 or not content.keys() <= {"tokens", "gpu_per_hour"}:
        raise InvalidArgument(f"{path} must have either {_FORMS}, and besides at most currency", field="prices")
    if "gpu_per_hour" in content:
        return gpu_prices(content["gpu_per_hour"], tiers, currency)
    by_tier = _by_tier(content["tokens"], tiers, "tokens")
    return Prices(currency, tokens={tier: _token_price(by_tier[tier], f"tokens.{tier}") for tier in tiers})


def gpu_prices(given: object, tiers: Sequence[str], currency: str = "") -> Prices:
    """Prices of machines: one number for one that holds all models, or a number by tier.

    Raises:
        InvalidArgument: as `read_prices`.
    """
    if not isinstance(given, Mapping):
        return Prices(currency, machine_per_hour=_price(given, "gpu_per_hour"))
    by_tier = _by_tier(given, tiers, "gpu_per_hour")
    return Prices(currency, gpu_per_hour={tier: _price(by_tier[tier], f"gpu_per_hour.{tier}") for tier in tiers})


def _by_tier(given: object, tiers: Sequence[str], field: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{field} must name {', '.join(tiers)}", field=field)
    for tier in tiers:
        if tier not in given:
            raise InvalidArgument(f"{field}.{tier} is missing", field=f"{field}.{tier}")
    for name in given:
        if name not in tiers:
            raise InvalidArgument(f"{field}.{name}: the report has no such model; it has {', '.join(tiers)}",
                                  field=f"{field}.{name}")  # fmt: skip
    return given


def _token_price(given: object, field: str) -> TokenPrice:
    names = ("input_per_million", "output_per_million")
    if not isinstance(given, Mapping) or set(given) != set(names):
        raise InvalidArgument(f"{field} must have {' and '.join(names)}, and nothing else", field=field)
    return TokenPrice(*(_price(given[name], f"{field}.{name}") for name in names))


def _price(given: object, field: str) -> float:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not isinstance(given, int | float) or not is_number or math.isnan(given) or not 0 <= given <= _MAX_PRICE:
        raise InvalidArgument(f"{field} must be a number from 0 to {_MAX_PRICE:g}, not {given!r}", field=field)
    return float(given)

"""OpenAI's form of `logit_bias`: an object whose keys are token ids as text."""

from collections.abc import Mapping

from ...errors import InvalidArgument

_LONGEST_ID = 10
"""Digits; no vocabulary needs more, and a longer key is not worth reading."""


def parse_logit_bias(content: Mapping[str, object]) -> dict[int, float]:
    """Biases by token id. Their ranges are the gateway's business.

    Raises:
        InvalidArgument: a key is no token id, or a value no number.
    """
    return {_token_id(key): _number(key, value) for key, value in content.items()}


def _token_id(key: str) -> int:
    if len(key) <= _LONGEST_ID and key.isascii() and key.isdigit() and key == str(int(key)):
        return int(key)
    raise InvalidArgument(
        f'the keys of logit_bias must be token ids, such as "42", not {key[: 2 * _LONGEST_ID]!r}', field="logit_bias"
    )


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"logit_bias of token {key} must be a number", field="logit_bias")
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgument(f"logit_bias of token {key} is too large", field="logit_bias") from None

"""Parameters of a policy as clients give them, before it is known what the policy takes."""

import math
import re
from collections.abc import Mapping

from ..errors import InvalidArgument
from ..mesh.routing import Parameters

MAX_PARAMETERS = 16
MAX_VALUES = 64
MAX_NAME_CHARACTERS = 64
_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME_CHARACTERS}}}")
"""ASCII: errors repeat the name, and what carries them takes no more."""


def read_parameters(content: Mapping[str, object]) -> Parameters:
    """Values by name; what a policy takes, and in which range, is checked by `mesh.routing`.

    Args:
        content: a number or a list of numbers by name.

    Raises:
        InvalidArgument: there are too many, a name cannot be one, or a value is neither; names the field.
    """
    if len(content) > MAX_PARAMETERS:
        raise InvalidArgument(
            f"routing may hold {MAX_PARAMETERS} parameters at most, not {len(content)}", field="routing"
        )
    for name in content:
        if not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"the name of a parameter in routing has 1 to {MAX_NAME_CHARACTERS} letters, digits, '_', '.' and '-', "
                f"not {name[:MAX_NAME_CHARACTERS]!a}",
                field="routing",
            )
    return {name: _values(f"routing.{name}", value) for name, value in content.items()}


def _values(field: str, value: object) -> tuple[float, ...]:
    values = value if isinstance(value, list) else [value]
    if len(values) > MAX_VALUES:
        raise InvalidArgument(f"{field} may hold {MAX_VALUES} numbers at most, not {len(values)}", field=field)
    return tuple(_number(field, item) for item in values)


def _number(field: str, value: object) -> float:
    # In Python a boolean is a number, which is not what a client means by it.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{field} must be a number or a list of numbers", field=field)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidArgument(f"{field} must be finite", field=field)
    return number

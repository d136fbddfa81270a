"""Fields of OpenAI's API that are known and not served: refused by name unless they ask for nothing.

Silence would be worse: a client that asks for tools or several answers must learn that it gets none.
Fields that nobody knows are ignored, so that clients of other servers work.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import InvalidArgument

_HARMLESS: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "web_search_options": (),
}
"""Field -> values that change nothing, null apart."""


def refuse_unsupported(content: Mapping[str, Any]) -> None:
    """Look through a request's fields.

    Raises:
        InvalidArgument: names the first field that asks for what is not served.
    """
    for field, harmless in _HARMLESS.items():
        value = content.get(field)
        if value is not None and not any(_is_same(value, allowed) for allowed in harmless):
            raise InvalidArgument(f"{field} is not supported here; leave it out", field=field)


def _is_same(value: object, allowed: object) -> bool:
    # In Python True equals 1, which is not what a client means by `"n": true`.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)

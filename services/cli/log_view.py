"""The logs of several services on one terminal: a coloured prefix says who speaks."""

from collections.abc import Iterable
from itertools import cycle

from rich.console import Console
from rich.text import Text

_STYLES = {"slm": "green", "llm": "magenta", "router": "yellow", "gateway": "cyan"}
_MIDDLE_STYLES = ("blue", "bright_red", "bright_green", "bright_blue", "bright_yellow", "bright_cyan")


class LogView:
    """Writes lines as they come. `names`: the services that speak, whose prefixes are of one width."""

    def __init__(self, console: Console, names: Iterable[str]) -> None:
        self._console = console
        names = tuple(names)
        self._width = max(map(len, names))
        middle = (name for name in names if name not in _STYLES)
        self._styles = _STYLES | dict(zip(middle, cycle(_MIDDLE_STYLES)))

    def show(self, name: str, line: str) -> None:
        """Write one line of a service; escape sequences in it are passed on as text."""
        self._console.print(
            Text.assemble((f"{name:{self._width}} | ", self._styles.get(name, "bold")), _without_controls(line))
        )


def _without_controls(line: str) -> str:
    return "".join(character if character.isprintable() or character == "\t" else "\ufffd" for character in line)

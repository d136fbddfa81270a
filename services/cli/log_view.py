"""The logs of several services on one terminal: a coloured prefix says who speaks."""

from rich.console import Console
from rich.text import Text

_STYLES = {"slm": "green", "llm": "magenta", "router": "yellow", "gateway": "cyan"}
_WIDTH = 7


class LogView:
    """Writes lines as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, name: str, line: str) -> None:
        """Write one line of a service; escape sequences in it are passed on as text."""
        self._console.print(Text.assemble((f"{name:{_WIDTH}} | ", _STYLES.get(name, "bold")), _without_controls(line)))


def _without_controls(line: str) -> str:
    return "".join(character if character.isprintable() or character == "\t" else "\ufffd" for character in line)

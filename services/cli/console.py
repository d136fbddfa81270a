"""Words for people: results go to stdout, everything else to stderr."""

from rich.console import Console
from rich.text import Text

from ..errors import AllroadsError, StartupError

ERROR_PREFIX = "error: "


def stdout() -> Console:
    """For what a command was asked for. Never wraps, so that lines can be copied and piped."""
    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


def stderr() -> Console:
    """For progress, logs and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def print_error(error: AllroadsError) -> None:
    """One red line: what is wrong and what to do."""
    stderr().print(Text(ERROR_PREFIX + one_line(error.message), style="bold red"))


def one_line(text: str) -> str:
    """Text without line breaks and control characters, fit for one line of a terminal."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def exit_code(error: AllroadsError) -> int:
    """2 where the set-up is wrong and a retry cannot help, 1 for a failure at run time."""
    return 2 if isinstance(error, StartupError) else 1

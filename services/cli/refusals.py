"""What is wrong with a command's files or options leaves the program with the exit code for that."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import InvalidArgument, StartupError


@contextmanager
def as_wrong_command() -> Iterator[None]:
    """Inside, what is refused as not allowed is told as a wrong command: the same one would fail again.

    Raises:
        StartupError: in place of `InvalidArgument`.
    """
    try:
        yield
    except InvalidArgument as error:
        raise StartupError(error.message, field=error.field) from error

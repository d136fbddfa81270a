"""The end of a process in which something still runs that nobody can interrupt."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import AllroadsError
from .console import exit_code, print_error
from .stop import StopRequest


@contextmanager
def leave_if_insisted(stop: StopRequest) -> Iterator[None]:
    """End the process with the context if `stop` insists by then, without a wait for tasks and threads.

    To be left after every context that has something to clean up.
    """
    code = 0
    try:
        yield
    except AllroadsError as error:
        if not stop.insisted.is_set():
            raise
        print_error(error)
        code = exit_code(error)
    if stop.insisted.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

"""Lets the process hold as many connections as clients come with: usual limits are below a burst of requests."""

import contextlib
import resource

_ENOUGH = 65_536


def allow_open_files() -> None:
    """Raise this process's own limit of open files as far as it may; where it may not, it stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

"""A child must not outlive the `allroads up` that started it, however that ended."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel for a signal at the death of the parent; leave at once if it is dead already.

    Linux only; elsewhere a child lives on after a supervisor that was killed with SIGKILL. Called in the
    child and not between fork and exec, where a process with threads may run no Python.

    Raises:
        SystemExit: the parent died while this process started.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        raise SystemExit(1)

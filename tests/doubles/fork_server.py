"""A program that has imported what services and commands need, and forks them: a start without that time.

Started by `forks.py` with its end of a socket pair, where orders come. It holds no thread and no channel, and
opens none, so a fork of it is as good as a fresh process. Each fork has a keeper between it and this program,
which tells the tests its process id and its end, and which kills it when the tests are gone.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass

MAX_ORDER_BYTES = 1 << 20
READY = b"ready"
_IMPORTS = (
    "allroads.cli.main",
    *(f"allroads.{folder}.service" for folder in ("slm", "llm", "router", "gateway")),
    "transformers.models.qwen3.modeling_qwen3",
)


@dataclass(frozen=True)
class Order:
    """What to start. Four descriptors come with it: the line to whoever waits, then input, output and errors."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    """The whole of it."""
    directory: str
    """Where it runs."""


def main() -> None:
    """Fork what is ordered until the other end is closed. In a fork this runs the module and leaves with it."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    for name in _IMPORTS:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        raise SystemExit("cannot fork: a library has started a thread at its import")
    os.close(os.pidfd_open(os.getpid()))  # what keepers need
    gc.freeze()
    orders.send(READY)
    signal.signal(signal.SIGCHLD, _reap_keepers)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the forks; this program ends with the tests
    order = _fork_until_closed(orders)
    if order is not None:
        path = order.environment.get("PYTHONPATH", "")
        sys.path[:0] = [os.getcwd(), *filter(None, path.split(os.pathsep))]
        sys.argv[1:] = order.arguments
        try:
            runpy.run_module(order.module, run_name="__main__", alter_sys=True)
        except KeyboardInterrupt:
            # Python ends by the signal itself, but not where torch's compiler was imported.
            traceback.print_exc()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)


def _fork_until_closed(orders: socket.socket) -> Order | None:
    """Returns an order in the process that is to carry it out, and None at the end."""
    while True:
        content, descriptors, _, _ = socket.recv_fds(orders, MAX_ORDER_BYTES, 4)
        if not content:
            return None
        line, *streams = descriptors
        if os.fork() == 0:
            orders.close()
            order = Order(**json.loads(content))
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                os.close(line)
                _become(order, streams)
                return order
            _close(streams)
            _keep(pid, socket.socket(fileno=line))
        _close(descriptors)


def _reap_keepers(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _become(order: Order, streams: list[int]) -> None:
    """What a shell does between fork and exec."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    _close(streams)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.directory)


def _keep(pid: int, line: socket.socket) -> None:
    """Tell the process id and the exit code; a line that is closed at the other end is the end of the fork."""
    line.send(str(pid).encode())
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, line.fileno()], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        line.send(str(code).encode())
    os._exit(0)


if __name__ == "__main__":
    main()

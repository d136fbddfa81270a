"""Being asked to stop: once politely, twice at once."""

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class StopRequest:
    """Two events that belong to one loop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """Stop, and give what is open its grace."""
        self.insisted = asyncio.Event()
        """Stop now, whatever is lost."""

    def ask(self) -> None:
        """Ask to stop; the second time insists."""
        if self.asked.is_set():
            self.insisted.set()
        self.asked.set()


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """A request that SIGINT, SIGTERM and the closing of the terminal make, while the context is open."""
    request = StopRequest()
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGINT: request.ask, signal.SIGTERM: request.ask}
    # Whoever started us with nohup wants us to outlive the terminal. A terminal that closes may say so twice.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = request.asked.set

    def on_signal(number: signal.Signals) -> None:
        logger.info("%s: stopping", number.name)
        handlers[number]()

    for number in handlers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield request
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)

"""The decode loop's thread: an actor that takes commands and works until nothing is left to do."""

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

BUSY_S, IDLE_S = 0.0, 0.05
"""What `work` returns while there is more to do, and when there is nothing."""

CommandT = TypeVar("CommandT")


class EngineThread(Generic[CommandT]):
    """Calls `work` with the commands that came since the last call, again and again.

    `work` returns for how many seconds the thread may sleep before it calls again; a command wakes it
    earlier. A failure of `work` ends the thread and is told to `on_crash`: what runs on shared
    state cannot be trusted after it, so the process should end and be restarted.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[CommandT]], float],
        *,
        on_crash: Callable[[BaseException], None],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`within`: surroundings of all work, which the thread itself enters; a GPU's stream of its own, say."""
        self._commands: queue.SimpleQueue[CommandT | None] = queue.SimpleQueue()
        self._work = work
        self._on_crash = on_crash
        self._within = within
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start working."""
        self._thread.start()

    def post(self, command: CommandT) -> None:
        """Hand over a command, from any thread, without waiting."""
        self._commands.put(command)

    def stop(self, timeout_s: float = 10.0) -> None:
        """End after the step in hand."""
        self._stopping = True
        self._commands.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        pause_s = 0.0
        try:
            with self._within():
                while not self._stopping:
                    pause_s = self._work(self._drain(pause_s))
        except Exception as error:
            logger.exception("the decode loop failed")
            self._on_crash(error)

    def _drain(self, pause_s: float) -> list[CommandT]:
        commands: list[CommandT] = []
        try:
            first = self._commands.get(timeout=pause_s) if pause_s > 0 else self._commands.get_nowait()
            while True:
                if first is not None:
                    commands.append(first)
                first = self._commands.get_nowait()
        except queue.Empty:
            return commands

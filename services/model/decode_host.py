"""Where the event loop and the decode thread meet: commands go in, deliveries come out, a crash ends both."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from ..engine.thread import EngineThread
from ..errors import Internal

CommandT = TypeVar("CommandT")


class DecodeHost(Generic[CommandT]):
    """Owns the decode thread of a service. Made in the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._crashed: asyncio.Future[None] = self._loop.create_future()
        self._thread: EngineThread[CommandT] | None = None

    def start(
        self,
        turn: Callable[[list[CommandT]], float],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Start the decode loop. `within`: its surroundings, such as `cuda.stream.own_stream` gives."""
        self._thread = EngineThread("decode", turn, on_crash=self._on_crash, within=within)
        self._thread.start()

    def post(self, command: CommandT) -> None:
        """Hand a command to the decode loop; before it has started there is nobody to tell."""
        if self._thread is not None:
            self._thread.post(command)

    def in_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        """Run a callback in the event loop, from the decode thread. Nothing happens once the loop is closed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)

    async def until_crash(self) -> None:
        """Wait for the decode loop to fail.

        Raises:
            Internal: it has.
        """
        await asyncio.shield(self._crashed)

    def stop(self) -> None:
        """End the decode loop after the step in hand."""
        if self._thread is not None:
            self._thread.stop()

    def _on_crash(self, error: BaseException) -> None:
        def tell() -> None:
            if not self._crashed.done():
                self._crashed.set_exception(Internal(f"the decode loop failed: {error!r}; the service must restart"))

        self.in_loop(tell)

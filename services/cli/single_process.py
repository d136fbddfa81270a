"""Runs all services of a mesh in one event loop: the same code as in processes of their own, and the same wire.

What a process would give each of them is missing: nobody starts one again that fails, so all stop with it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..config import MeshSettings
from ..errors import AllroadsError, StartupError, Unavailable
from ..mesh.server import first_of
from .readiness import until_ready
from .services import Service, run_of
from .speakers import speaking_as
from .stop import StopRequest

logger = logging.getLogger(__name__)

_STOP_MARGIN_S = 10.0
"""What a service may take beyond its grace."""


@dataclass(frozen=True)
class _Resident:
    stop: asyncio.Event
    task: "asyncio.Task[None]"


class SingleProcess:
    """Runs services, given in the order in which they start: whoever is called stands before its callers."""

    def __init__(
        self,
        settings: MeshSettings,
        services: Sequence[Service],
        *,
        ready_timeout_s: float,
        on_ready: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._services = tuple(services)
        self._ready_timeout_s = ready_timeout_s
        self._on_ready = on_ready
        self._residents: dict[str, _Resident] = {}

    async def run(self, stop: StopRequest) -> None:
        """Run until asked to stop. If `stop` insists in the end, services were left behind that still run.

        Raises:
            StartupError: a service refused its configuration.
            Unavailable: a service failed, or was not ready in time.
        """
        try:
            # One after the other: loading a model changes defaults of torch that all threads share.
            for service in self._services:
                await self._start(service, stop)
                if stop.asked.is_set():
                    return
            self._on_ready()
            await first_of(stop.asked, *self._tasks())
        finally:
            await self._stop_all(stop)

    async def _start(self, service: Service, stop: StopRequest) -> None:
        name = service.name
        logger.info("starting %s", name)
        asked = asyncio.Event()
        task = asyncio.create_task(self._live(name, asked), name=name, context=speaking_as(name))
        self._residents[name] = _Resident(asked, task)
        ready = asyncio.create_task(until_ready(service.address, service.health_name, service.tls))
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await first_of(stop.asked, ready, *self._tasks())
        except TimeoutError:
            raise Unavailable(
                f"{name} was not ready within {self._ready_timeout_s:g} s; see its log above, "
                "or allow more with --ready-timeout"
            ) from None
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
        if not stop.asked.is_set():
            logger.info("%s is ready", name)

    async def _live(self, name: str, stop: asyncio.Event) -> None:
        try:
            # In a thread, as torch takes seconds to import, in which signals and other services would wait.
            run = await asyncio.to_thread(run_of, name)
            await run(self._settings, stop)
        except StartupError as error:
            raise StartupError(f"{name} could not start: {error.message}", field=error.field) from error
        except AllroadsError as error:
            raise _failure(name, error.message) from error
        except Exception as error:  # what would have ended a process of its own
            logger.exception("failed")
            raise _failure(name, repr(error)) from error
        if not stop.is_set():
            raise _failure(name, "it ended without being asked to")

    async def _stop_all(self, stop: StopRequest) -> None:
        """Callers first, so that nobody is left waiting for a service that has gone."""
        for name, resident in reversed(self._residents.items()):
            if not resident.task.done():
                await self._stop(name, resident, stop)
        # A failure that came second is in the log; nobody else asks for it.
        await asyncio.gather(*(task for task in self._tasks() if task.done()), return_exceptions=True)

    async def _stop(self, name: str, resident: _Resident, stop: StopRequest) -> None:
        logger.info("stopping %s", name)
        resident.stop.set()
        insisted = asyncio.create_task(stop.insisted.wait())
        limit_s = self._settings.grace_s + _STOP_MARGIN_S
        try:
            await asyncio.wait({resident.task, insisted}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            insisted.cancel()
        if not resident.task.done():
            logger.warning("leaving %s behind", name)
            stop.insisted.set()

    def _tasks(self) -> "list[asyncio.Task[None]]":
        return [resident.task for resident in self._residents.values()]


def _failure(name: str, reason: str) -> Unavailable:
    logger.error("%s failed: %s", name, reason)
    return Unavailable(f"{name} failed: {reason}; in one process all services stop with it")

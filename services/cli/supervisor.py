"""Keeps the services of a mesh running: starts them, restarts what dies, stops them without a trace."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from ..errors import AllroadsError, StartupError, Unavailable
from ..mesh.server import first_of
from .logs import OnLine
from .process import Child
from .readiness import until_ready
from .restarts import Deaths, RestartPolicy
from .services import Service
from .stop import StopRequest

logger = logging.getLogger(__name__)

_CONFIGURATION_EXIT_CODE = 2
_STOP_MARGIN_S = 10.0
"""What a service may take beyond its grace: an interpreter with torch in it leaves slowly on a busy machine."""


class Supervisor:
    """Runs services, given in the order in which they start: whoever is called stands before its callers."""

    def __init__(
        self,
        services: Sequence[Service],
        *,
        ready_timeout_s: float,
        grace_s: float,
        on_line: OnLine,
        on_ready: Callable[[], None],
        restarts: RestartPolicy | None = None,
    ) -> None:
        self._services = tuple(services)
        self._ready_timeout_s, self._grace_s = ready_timeout_s, grace_s
        self._on_line, self._on_ready = on_line, on_ready
        self._restarts = restarts or RestartPolicy()
        self._children: dict[str, Child] = {}
        self._starting = {service.name for service in services}

    async def run(self, stop: StopRequest) -> None:
        """Run until asked to stop. However this ends, no child is left.

        Raises:
            StartupError: a service refused its configuration.
            Unavailable: a service ended while the mesh started, was not ready in time, or died too often.
        """
        tasks: list[asyncio.Task[None]] = []
        try:
            # All at once, so that models load side by side; each waits by itself for those it calls.
            for service in self._services:
                await self._start(service)
            tasks = [
                asyncio.create_task(self._keep(service), name=f"keep {service.name}") for service in self._services
            ]
            await first_of(stop.asked, *tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop_all(stop)

    async def _start(self, service: Service) -> Child:
        child = self._children[service.name] = await Child.start(service, self._on_line)
        logger.info("starting %s (process %d)", service.name, child.pid)
        return child

    async def _keep(self, service: Service) -> None:
        child = self._children[service.name]
        if (fault := await self._fault_before_ready(child)) is not None:
            raise fault
        self._starting.discard(service.name)
        if not self._starting:
            self._on_ready()
        deaths = Deaths(self._restarts)
        while True:
            await child.ended()
            if self._starting:
                raise _start_fault(child)
            await self._pause_after_death(child, deaths)
            child = await self._start(service)
            fault = await self._fault_before_ready(child)
            if fault is None:
                logger.info("%s is ready again", service.name)
            elif not child.has_ended:
                logger.error("%s", fault.message)
                child.kill()

    async def _fault_before_ready(self, child: Child) -> AllroadsError | None:
        """Wait until the child is ready, and say why it will not be where it has ended or takes too long."""
        service = child.service
        ready = asyncio.create_task(until_ready(service.address, service.health_name, service.tls))
        ended = asyncio.create_task(child.ended())
        try:
            await asyncio.wait({ready, ended}, timeout=self._ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return _start_fault(child)
            if ready.done():
                ready.result()
                logger.info("%s is ready", service.name)
                return None
            return Unavailable(
                f"{service.name} was not ready within {self._ready_timeout_s:g} s; see its log above, "
                "or allow more with --ready-timeout"
            )
        finally:
            ready.cancel()
            ended.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)

    async def _pause_after_death(self, child: Child, deaths: Deaths) -> None:
        name, how = child.service.name, child.how_it_ended()
        pause_s = deaths.record(asyncio.get_running_loop().time())
        if pause_s is None:
            raise Unavailable(
                f"{name} died {self._restarts.max_deaths} times within {self._restarts.window_s:g} s, giving up; "
                f"the last time: {how}"
            )
        logger.warning("%s died (%s); starting it again in %g s", name, how, pause_s)
        await asyncio.sleep(pause_s)

    async def _stop_all(self, stop: StopRequest) -> None:
        """Callers first, so that nobody is left waiting for a service that has gone."""
        for service in reversed(self._services):
            child = self._children.get(service.name)
            if child is not None and not child.has_ended:
                await self._stop(child, stop)

    async def _stop(self, child: Child, stop: StopRequest) -> None:
        logger.info("stopping %s", child.service.name)
        child.terminate()
        ended = asyncio.create_task(child.ended())
        insisted = asyncio.create_task(stop.insisted.wait())
        limit_s = self._grace_s + _STOP_MARGIN_S
        try:
            await asyncio.wait({ended, insisted}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            insisted.cancel()
            if not ended.done():
                logger.warning("killing %s", child.service.name)
                child.kill()
            await ended


def _start_fault(child: Child) -> AllroadsError:
    message = f"{child.service.name} could not start: {child.how_it_ended()}"
    return StartupError(message) if child.exit_code == _CONFIGURATION_EXIT_CODE else Unavailable(message)
